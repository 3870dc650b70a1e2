// The HTTP API as this page uses it.

import { ApiError, errorOfObject, errorOfResponse } from "/static/errors.js";
import { eventData } from "/static/sse.js";

const UNREACHABLE = "The server cannot be reached. Is it running?";
const CUT_OFF = "The connection ended in the middle of the answer.";

/** The models served: `[{id, max_model_len}, ...]`. */
export async function listModels(key) {
  const response = await request("/v1/models", key, {});
  return (await response.json()).data;
}

/** Where the time of a request went, as /v1/requests/ID/trace says. */
export async function loadTrace(requestId, key) {
  const response = await request(`/v1/requests/${encodeURIComponent(requestId)}/trace`, key, {});
  return response.json();
}

/** The live map, as GET /v1/map answers it. */
export async function getMap(key) {
  const response = await request("/v1/map", key, {});
  return response.json();
}

/**
 * Streams a chat's chunks. Leaving the loop, or the signal, ends the request.
 * @param {object} body of /v1/chat/completions, but for what makes it a stream
 * @param {string} key "": none
 * @param {AbortSignal} signal
 * @param {(requestId: string) => void} onStarted called before the first chunk
 */
export async function* streamChat(body, key, signal, onStarted) {
  const response = await request("/v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const requestId = response.headers.get("x-request-id");
  onStarted(requestId);
  const events = eventData(response.body);
  for (;;) {
    const { done, value } = await orUnreachable(events.next(), CUT_OFF);
    if (done) throw new ApiError(CUT_OFF, { requestId });
    if (value === "[DONE]") return;
    const chunk = JSON.parse(value);
    if (chunk.error) throw errorOfObject(chunk.error, { requestId });
    yield chunk;
  }
}

async function request(path, key, options) {
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await orUnreachable(fetch(path, { ...options, headers }), UNREACHABLE);
  if (!response.ok) throw await errorOfResponse(response);
  return response;
}

/** A failed connection is a TypeError to fetch; an abort stays what it is. */
async function orUnreachable(promise, message) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(message) : error;
  }
}
