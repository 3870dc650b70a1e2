// A typed client of the gateway: the generated service on @grpc/grpc-js.

import { readFileSync } from "node:fs";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import grpc from "@grpc/grpc-js";
import { InferenceService } from "./gen/pagewire/v1/inference_pb.js";

// What may be retried, and that calls go round all addresses: the same file as the Python SDK's.
const SERVICE_CONFIG = readFileSync(
  new URL("../../../pagewire/client/service_config.json", import.meta.url),
  "utf8",
);

/** Describe a generated service as grpc-js wants it: paths, and functions between messages and bytes. */
function methodsOf(service) {
  const methods = service.methods.map((method) => [
    method.localName,
    {
      path: `/${service.typeName}/${method.name}`,
      requestStream: ["client_streaming", "bidi_streaming"].includes(method.methodKind),
      responseStream: ["server_streaming", "bidi_streaming"].includes(method.methodKind),
      requestSerialize: (message) => Buffer.from(toBinary(method.input, message)),
      requestDeserialize: (bytes) => fromBinary(method.input, bytes),
      responseSerialize: (message) => Buffer.from(toBinary(method.output, message)),
      responseDeserialize: (bytes) => fromBinary(method.output, bytes),
    },
  ]);
  return Object.fromEntries(methods);
}

const InferenceClient = grpc.makeGenericClientConstructor(
  methodsOf(InferenceService),
  InferenceService.typeName,
);

/** Open a client; it connects at the first call. */
export function connect(address) {
  return new InferenceClient(address, grpc.credentials.createInsecure(), {
    "grpc.service_config": SERVICE_CONFIG,
  });
}

/** What every call carries. */
export function metadata(apiKey) {
  const result = new grpc.Metadata();
  if (apiKey) result.set("authorization", `Bearer ${apiKey}`);
  return result;
}
