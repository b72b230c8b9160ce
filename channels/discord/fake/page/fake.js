/** What the page asks of the fake. */

let notice = () => {};

/** Where refusals are shown. */
export function onRefusal(show) {
  notice = show;
}

/** Do something on the platform; resolves to its result, or to undefined when it cannot be done. */
export async function act(name, given = {}) {
  const answer = await fetch(`/_fake/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(given),
  });
  const said = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (answer.ok) return said.result;
  notice(said.error);
  return undefined;
}

/** Call `show` with everything that stands on the platform, now and after every change. */
export async function follow(show) {
  let version = -1;
  for (;;) {
    try {
      const answer = await fetch(`/_fake/state?after=${version}`);
      const state = await answer.json();
      version = state.version;
      show(state);
    } catch {
      notice("The fake is gone; waiting for it to come back.");
      version = -1;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

/** A file as the fake takes it: base64. */
export async function packed(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}
