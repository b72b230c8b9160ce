// A bot of Slack's own JavaScript library at a fake platform: `node client.mjs socket|http API_URL BOT_TOKEN
// APP_TOKEN SIGNING_SECRET`. It does what people tell it.

import bolt from "@slack/bolt";

const [mode, slackApiUrl, token, appToken, signingSecret] = process.argv.slice(2);
const transport = mode === "socket" ? { socketMode: true, appToken } : { signingSecret };
const app = new bolt.App({ token, ...transport, clientOptions: { slackApiUrl } });
const button = (text, action_id) => ({ type: "button", action_id, text: { type: "plain_text", text } });

app.event("app_mention", async ({ event, client, context }) => {
  const stream = client.chatStream({
    channel: event.channel,
    thread_ts: event.thread_ts ?? event.ts,
    recipient_user_id: event.user,
    recipient_team_id: context.teamId,
    buffer_size: 4,
  });
  for (const word of ["**You", " mentioned", " me**"]) await stream.append({ markdown_text: word });
  await stream.stop();
});

app.message("upload", async ({ message, client }) => {
  await client.filesUploadV2({
    channel_id: message.channel,
    thread_ts: message.ts,
    content: "all of it",
    filename: "note.txt",
    initial_comment: "here",
  });
});

app.message("fetch", async ({ message, say }) => {
  const headers = { Authorization: `Bearer ${token}` };
  const file = await fetch(message.files[0].url_private, { headers });
  await say(`${(await file.arrayBuffer()).byteLength} bytes`);
});

app.message("ask", async ({ message, say, client }) => {
  await client.reactions.add({ channel: message.channel, timestamp: message.ts, name: "eyes" });
  await say({
    text: "Well?",
    metadata: { event_type: "placed", event_payload: { k: "n1" } },
    blocks: [
      { type: "section", text: { type: "mrkdwn", text: "*Well?*" } },
      { type: "actions", elements: [button("Yes", "yes"), button("No", "no")] },
    ],
  });
});

app.message("find", async ({ message, say, client }) => {
  const history = await client.conversations.history({ channel: message.channel, include_all_metadata: true });
  const keys = history.messages.map((one) => one.metadata?.event_payload?.k).filter(Boolean);
  await say(`found ${keys}`);
});

app.message("wrong", async ({ message, say, client }) => {
  try {
    await client.chat.update({ channel: message.channel, ts: message.ts, text: "not mine" });
  } catch (error) {
    await say(error.data.error);
  }
});

app.action("yes", async ({ ack, body, client }) => {
  await ack();
  await client.chat.update({ channel: body.channel.id, ts: body.message.ts, text: "Good", blocks: [] });
});

app.action("no", async ({ ack, respond }) => {
  await ack();
  await respond({ text: "Bad", replace_original: true });
});

app.command("/ask", async ({ ack, command }) => ack(`about ${command.text}`));

app.shortcut("open", async ({ ack, shortcut, client }) => {
  await ack();
  const title = { type: "plain_text", text: "Title" };
  await client.views.open({ trigger_id: shortcut.trigger_id, view: { type: "modal", title, blocks: [] } });
});

if (mode === "socket") {
  await app.start();
  console.log("ready");
} else {
  const server = await app.start(0);
  console.log(server.address().port);
}
