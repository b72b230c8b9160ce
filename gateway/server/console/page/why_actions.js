/** Actions beside a verdict: each does what the command of the terminal does, or opens the screen that can. */
import { announce } from "/shared/announcer.js";
import { h } from "/shared/dom.js";
import { t } from "/shared/language.js";
import { read, send } from "./api.js";
import { showCommand } from "./command_dialog.js";
import { changeSetting } from "./settings_change.js";

/** Screens of actions that open something; a screen that this gateway has not is a command. */
const SCREENS = { channels: "now", dead: "dead", rooms: "rooms", plugins: "plugins", agents: "agents", settings: "settings" };

/** Screens that show one thing by its name. */
const NAMED = new Set(["plugins", "agents"]);

/**
 * @param {import("./why_verdict.js").Action} action @param {{id: string}} message
 * @param {import("./app.js").Context} context @param {() => void} done called after something changed
 */
export async function takeAction(action, message, context, done) {
  const { kind, target = "", more = "" } = action;
  const open = (screen, path = [], query = {}) => (context.has(screen) ? context.open(screen, path, query) : showCommand(action));
  try {
    switch (kind) {
      case "message":
        return open("why", [target]);
      case "allow":
        return open("waiting", [target]);
      case "pair":
        return open("waiting", more ? [`pair-${target}-${more}`] : []);
      case "replace_key":
        return open("models", [target], { key: more });
      case "open":
        return open(SCREENS[target], NAMED.has(target) && more ? [more] : [], target === "settings" ? { q: more } : {});
      case "stop":
        await send("POST", `/api/sessions/${encodeURIComponent(target)}/abort`);
        break;
      case "now":
        await send("POST", `/api/why/${encodeURIComponent(message.id)}/now`);
        break;
      case "raise_budget":
      case "model":
        if (!(await change(kind === "model" ? ["model"] : ["budgets", target, "stop"], action))) return;
        break;
      default:
        return showCommand(action);
    }
    announce([h("p", {}, t(`why.done.${kind}`))]);
    done();
  } catch (error) {
    context.notify(error.message);
  }
}

/** Let the user change a setting, after the difference; return whether it was changed. */
async function change(path, action) {
  const { settings, can_change: can } = await read("/api/settings");
  const row = settings.find((one) => one.path.join("\n") === path.join("\n"));
  if (row && can) return changeSetting(row);
  showCommand(action);
  return false;
}
