// Ask one question and print the answer as it comes.
//
//     node src/chat.js "What is the capital of France?"
//
// PAGEWIRE_ADDRESS: the gateway's gRPC API (default 127.0.0.1:50050). PAGEWIRE_API_KEY: its key.

import { create } from "@bufbuild/protobuf";
import grpc from "@grpc/grpc-js";
import { connect, metadata } from "./client.js";
import { FinishReason } from "./gen/pagewire/v1/common_pb.js";
import { ChatRequestSchema } from "./gen/pagewire/v1/inference_pb.js";

const TIMEOUT_MS = 60_000;

const question = process.argv[2];
if (!question) {
  console.error("usage: node src/chat.js QUESTION");
  process.exit(2);
}

const client = connect(process.env.PAGEWIRE_ADDRESS ?? "127.0.0.1:50050");
const request = create(ChatRequestSchema, {
  messages: [{ role: "user", content: question }],
  sampling: { temperature: 0 },
  stopping: { maxTokens: 64 },
});
const call = client.chat(request, metadata(process.env.PAGEWIRE_API_KEY), {
  deadline: Date.now() + TIMEOUT_MS,
});
// Ctrl-C cancels the call: the request is aborted in the engine, and frees what it held.
process.once("SIGINT", () => call.cancel());

try {
  for await (const { event } of call) {
    if (event.case === "delta") process.stdout.write(event.value.content);
    if (event.case === "finished") {
      process.stdout.write(`\n[${FinishReason[event.value.finishReason].toLowerCase()}]\n`);
    }
    if (event.case === "usage") {
      const { promptTokens, completionTokens } = event.value;
      console.log(`[${promptTokens} prompt tokens, ${completionTokens} completion tokens]`);
    }
  }
} catch (error) {
  // Admission fails before the first event, so a refusal comes alone.
  console.error(`${grpc.status[error.code]}: ${error.details}`);
  process.exitCode = 1;
} finally {
  client.close();
}
