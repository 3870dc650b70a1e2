// What went wrong, in words for the one who reads the page.

/** A refusal of the server, or a connection that failed (status 0). */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, field?: string|null, retryAfter?: string|null, requestId?: string|null}} about
   */
  constructor(message, about = {}) {
    super(message);
    this.status = about.status ?? 0;
    this.field = about.field ?? null;
    this.retryAfter = about.retryAfter ?? null;
    this.requestId = about.requestId ?? null;
  }

  /** One text with all of it. */
  toString() {
    const parts = [this.message];
    if (this.retryAfter) parts.push(`Try again in ${this.retryAfter} s.`);
    const about = [this.status && `status ${this.status}`, this.requestId && `request ${this.requestId}`];
    const known = about.filter(Boolean).join(", ");
    return known ? `${parts.join(" ")} (${known})` : parts.join(" ");
  }
}

/** The error that an answer with a bad status tells of, whatever its body is. */
export async function errorOfResponse(response) {
  const body = await response.json().catch(() => null);
  return errorOfObject(body?.error, {
    status: response.status,
    retryAfter: response.headers.get("retry-after"),
    requestId: response.headers.get("x-request-id"),
  });
}

/** The error of an OpenAI error object. */
export function errorOfObject(object, about = {}) {
  const message = object?.message ?? "The server refused the request and did not say why.";
  return new ApiError(message, { status: object?.code, ...about, field: object?.param });
}
