// Reads and writes records with kafkajs. See other_clients.py for its arguments.

const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, mode, name, count] = process.argv.slice(2);

async function main() {
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
  let start = null;
  if (mode === "since") {
    const admin = kafka.admin();
    await admin.connect();
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, Number(name));
    start = found.find(({ partition }) => partition === 0).offset;
    await admin.disconnect();
  }
  const groupId = mode === "group" ? name : `since-${topic}-${process.pid}`;
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 500 });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  let left = Number(count);
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (left === 0) return;
        process.stdout.write(`${message.value}\n`);
        left -= 1;
        await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }]);
        if (left === 0) resolve();
      },
    }).catch(reject);
    if (start !== null) consumer.seek({ topic, partition: 0, offset: start });
  });
  await consumer.disconnect();
}

if (mode === "feed" || mode === "follow") require("./live.js");
else main().catch((error) => {
  console.error(error);
  process.exit(1);
});
