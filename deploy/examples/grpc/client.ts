// Chat over gRPC from TypeScript: `npm install && npm run build && node client.js PROTO_FOLDER HOST:PORT MODEL "A question"`.
// PROTO_FOLDER is this repository's `proto`.

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

interface Usage {
  prompt_tokens: number;
  output_tokens: number;
}

interface ChatEvent {
  text: string;
  usage: Usage | null;
}

interface Inference extends grpc.Client {
  ListModels(
    asked: object,
    done: (error: grpc.ServiceError | null, reply: { models: { id: string }[] }) => void,
  ): void;
  ChatStream(asked: object, metadata: grpc.Metadata, options: grpc.CallOptions): grpc.ClientReadableStream<ChatEvent>;
}

type Service = new (address: string, credentials: grpc.ChannelCredentials) => Inference;

const [folder = "proto", address = "127.0.0.1:30001", model = "", question = ""] = process.argv.slice(2);
const definition = loadSync("pointsman/v1/inference.proto", { includeDirs: [folder], keepCase: true, defaults: true });
const loaded = grpc.loadPackageDefinition(definition) as unknown as { pointsman: { v1: { Inference: Service } } };
const client = new loaded.pointsman.v1.Inference(address, grpc.credentials.createInsecure());

const models = await new Promise<string[]>((resolve, reject) =>
  client.ListModels({}, (error, reply) => (error ? reject(error) : resolve(reply.models.map((each) => each.id)))),
);
console.log(`models: ${models.join(", ")}`);

const asked = {
  model,
  messages: [{ role: "user", parts: [{ text: question }] }],
  sampling: { max_tokens: 24, temperature: 0 },
};
const metadata = new grpc.Metadata();
metadata.set("x-session-id", "example");
// The deadline and a cancel reach the engine; metadata are what headers are over HTTP.
const answer = client.ChatStream(asked, metadata, { deadline: Date.now() + 60_000 });
answer.on("metadata", (told: grpc.Metadata) =>
  console.log(`answered by ${told.get("x-pointsman-replica")[0]}: ${told.get("x-pointsman-reason")[0]}`),
);
try {
  for await (const event of answer as AsyncIterable<ChatEvent>) {
    process.stdout.write(event.text);
    if (event.usage) console.log(`\n${event.usage.prompt_tokens} tokens in, ${event.usage.output_tokens} out`);
  }
} catch (error) {
  const failed = error as grpc.ServiceError;
  console.error(`\n${grpc.status[failed.code]}: ${failed.details}`);
  process.exitCode = 1;
}
client.close();
