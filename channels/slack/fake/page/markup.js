/** Renderer of Slack's markup and some Markdown as DOM nodes. Text never becomes HTML. */

const PIECES = /```\n?([\s\S]*?)```\n?|`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\n]+)\*|<([^<>\n]+)>/g;

/** Return the nodes of a text. `name` returns a user's name by id. */
export function shown(text, name) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(PIECES)) {
    nodes.push(plain(text.slice(end, match.index)));
    nodes.push(piece(match, name));
    end = match.index + match[0].length;
  }
  nodes.push(plain(text.slice(end)));
  return nodes;
}

function piece([, fenced, code, strong, bold, inside], name) {
  if (fenced !== undefined) {
    const pre = document.createElement("pre");
    pre.append(marked("code", fenced));
    return pre;
  }
  if (code !== undefined) return marked("code", code);
  if (strong ?? bold) return marked("strong", strong ?? bold);
  return sequence(inside, name);
}

function sequence(inside, name) {
  const [target, label] = inside.split("|", 2);
  if (target.startsWith("@")) return mention("@" + name(target.slice(1)));
  if (target.startsWith("#")) return mention("#" + (label ?? target.slice(1)));
  if (target.startsWith("!")) return mention("@" + (label ?? target.slice(1)));
  if (!/^https?:/.test(target)) return plain(`<${inside}>`);
  const link = marked("a", label ?? target);
  link.href = target;
  link.rel = "noreferrer noopener";
  link.target = "_blank";
  return link;
}

function mention(text) {
  const element = marked("span", text);
  element.className = "mention";
  return element;
}

function marked(tag, text) {
  const element = document.createElement(tag);
  element.append(plain(text));
  return element;
}

function plain(text) {
  const read = text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  return document.createTextNode(read);
}
