// A bot of grammY at a fake platform: `node client.mjs URL TOKEN`. It does what people tell it, until "/quit".

import { Bot, InlineKeyboard, InputFile } from "grammy";

const [url, token] = process.argv.slice(2);
const bot = new Bot(token, { client: { apiRoot: url } });
const thread = (ctx) => ({ message_thread_id: ctx.message?.message_thread_id });

bot.command("ask", (ctx) => ctx.reply("Well?", { reply_markup: new InlineKeyboard().text("Yes", "y").text("No", "n") }));
bot.command("file", (ctx) => ctx.replyWithDocument(new InputFile(Buffer.from("all of it"), "note.txt"), { caption: "<b>here</b>", parse_mode: "HTML" }));
bot.command("draft", async (ctx) => {
  await ctx.api.sendMessageDraft(ctx.chat.id, 7, "A tru", { can_stop: true });
});
bot.command("wrong", (ctx) => ctx.reply("a.b", { parse_mode: "MarkdownV2" }));
bot.command("quit", async (ctx) => {
  await ctx.reply("Goodbye");
  await bot.stop();
});
bot.on("callback_query:data", async (ctx) => {
  await ctx.answerCallbackQuery({ text: `Got ${ctx.callbackQuery.data}` });
  await ctx.editMessageText("Good");
});
bot.on("message:photo", async (ctx) => {
  const file = await ctx.getFile();
  const bytes = await (await fetch(`${url}/file/bot${token}/${file.file_path}`)).arrayBuffer();
  await ctx.reply(`${ctx.message.photo.length} sizes, ${bytes.byteLength} bytes`);
});
bot.on("message:text", async (ctx) => {
  await ctx.react("👀");
  await ctx.reply(`You said: ${ctx.message.text}`, { reply_parameters: { message_id: ctx.msgId }, ...thread(ctx) });
});
bot.on("edited_message:text", (ctx) => ctx.reply(`Now you say: ${ctx.editedMessage.text}`));
bot.on("stopped_message_generation", (ctx) => ctx.api.sendMessage(ctx.update.stopped_message_generation.chat.id, "Stopped"));
bot.catch((error) => bot.api.sendMessage(error.ctx.chat.id, error.error.description));

await bot.api.setMyCommands([{ command: "ask", description: "Ask something" }]);
await bot.start({ onStart: (me) => console.log(`@${me.username} polls`) });
