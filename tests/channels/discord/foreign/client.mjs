// A bot of discord.js at a fake platform: `node client.mjs API_URL TOKEN`. It does what people tell it.

import {
  ActionRowBuilder,
  ApplicationCommandOptionType,
  ButtonBuilder,
  ButtonStyle,
  Client,
  Events,
  GatewayIntentBits as Intents,
  MessageFlags,
  Partials,
} from "discord.js";

const [api, token] = process.argv.slice(2);
const client = new Client({
  intents: [Intents.Guilds, Intents.GuildMessages, Intents.GuildMessageReactions, Intents.DirectMessages, Intents.MessageContent],
  partials: [Partials.Channel],
  allowedMentions: { parse: [] },
  rest: { api, version: "10" },
});

const answers = {
  async echo(message) {
    const said = await message.reply(`one, ${message.author.username}`);
    await said.edit("two");
    await message.react("👍");
  },
  async buttons(message) {
    const button = new ButtonBuilder().setCustomId("go").setLabel("Go").setStyle(ButtonStyle.Primary);
    await message.channel.send({ content: "ready?", components: [new ActionRowBuilder().addComponents(button)] });
  },
  async file(message) {
    const answer = await fetch(message.attachments.first().url);
    const text = await answer.text();
    await message.channel.send({ content: text, files: [{ attachment: Buffer.from(text), name: "back.txt" }] });
  },
  async thread(message) {
    const thread = await message.startThread({ name: "aside" });
    await thread.send("in here");
  },
  async history(message) {
    const found = await message.channel.messages.fetch({ before: message.id, limit: 2 });
    await message.channel.send(found.map((said) => said.content).join(" "));
  },
  async forbidden(message) {
    await message.channel.send("x").catch((error) => message.author.send(`refused: ${error.code}`));
  },
  async many(message) {
    for (let number = 0; number < 6; number += 1) await message.channel.send(String(number));
  },
};

client.on(Events.MessageCreate, async (message) => {
  if (!message.author.bot) await answers[message.content.split(" ")[0]]?.(message);
});

client.on(Events.InteractionCreate, async (interaction) => {
  if (interaction.isButton()) {
    await interaction.update({ content: `${interaction.user.username} went`, components: [] });
  } else if (interaction.isChatInputCommand()) {
    await interaction.deferReply();
    await interaction.editReply(`you asked: ${interaction.options.getString("question")}`);
    await interaction.followUp({ content: "privately", flags: MessageFlags.Ephemeral });
  }
});

client.once(Events.ClientReady, async () => {
  const question = { type: ApplicationCommandOptionType.String, name: "question", description: "What", required: true };
  await client.application.commands.set([{ name: "ask", description: "Ask", options: [question] }]);
});

client.on(Events.Error, (error) => console.error(error));
await client.login(token);
