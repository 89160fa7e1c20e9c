// A producer, or a member of a group, of kafkajs. See other_clients.py for its arguments.

const readline = require("node:readline");
const { CompressionTypes, Kafka, Partitioners, logLevel } = require("kafkajs");

const [bootstrap, topic, mode, ...more] = process.argv.slice(2);
const metadataMaxAge = Number(more.at(-1));
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });

async function feed() {
  const producer = kafka.producer({
    idempotent: true,
    maxInFlightRequests: 1,
    metadataMaxAge,
    createPartitioner: Partitioners.DefaultPartitioner,
  });
  await producer.connect();
  let waiting = [];
  let sending = Promise.resolve();
  // What waits is sent in one request, after the one before: so records stay in order.
  const send = async () => {
    const messages = waiting;
    waiting = [];
    if (messages.length) await producer.send({ topic, messages, acks: -1, compression: CompressionTypes.None });
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === "flush") {
      await sending;
      process.stdout.write("flushed\n");
    } else {
      const [key, value] = line.split(" ");
      waiting.push({ key, value });
      sending = sending.then(send);
    }
  }
  await sending;
  await producer.disconnect();
}

async function follow() {
  const consumer = kafka.consumer({ groupId: more[0], maxWaitTimeInMs: 200, metadataMaxAge, heartbeatInterval: 500 });
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    if (!payload.restart) fail(payload.error);
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ message }) => process.stdout.write(`${message.value}\n`),
  });
  for await (const _ of readline.createInterface({ input: process.stdin })) break;
  await consumer.disconnect();
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

(mode === "feed" ? feed() : follow()).then(() => process.exit(0), fail);
