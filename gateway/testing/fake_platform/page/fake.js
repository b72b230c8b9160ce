/** The control interface of a fake platform, as its page uses it. */

let notice = () => {};

/** Set the function that shows a refusal. */
export function onRefusal(show) {
  notice = show;
}

/** Do what a user can do. Resolves to the result; to undefined if it is refused. */
export async function act(name, given = {}) {
  const answer = await fetch(`/_fake/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(given),
  });
  const said = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  notice(answer.ok ? "" : said.error);
  if (answer.ok) return said.result;
  return undefined;
}

/** Call `show` with the state of the platform, now and after each change. */
export async function follow(show) {
  let version = -1;
  for (;;) {
    try {
      const answer = await fetch(`/_fake/state?after=${version}`);
      const state = await answer.json();
      version = state.version;
      await show(state);
    } catch {
      notice("The fake does not answer. Trying again.");
      version = -1;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}
