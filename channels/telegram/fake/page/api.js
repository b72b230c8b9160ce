/** What the fake platform is asked. */

/** Everything that stands, as soon as it is not version `after` any more. */
export async function state(after) {
  const answer = await fetch(`/_fake/state?after=${after}`);
  if (!answer.ok) throw new Error(`the platform answers ${answer.status}`);
  return answer.json();
}

/** Do something as a person. Throws an Error with the platform's words. */
export async function act(what, given) {
  const answer = await fetch(`/_fake/${what}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(given),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  return said.id;
}
