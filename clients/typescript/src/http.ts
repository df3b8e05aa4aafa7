import { setTimeout as sleep } from "node:timers/promises";

export interface ConnectionOptions {
  /** The address, or several that serve one store; by default, `DQ_API` and `DQ_TOKEN` count. */
  url?: string | string[];
  token?: string;
}

/** While the server is away, a call is repeated for `retryFor` milliseconds, by default 10,000. */
export type CallOptions = { signal?: AbortSignal; retryFor?: number };
type Call = CallOptions & { body?: unknown; headers?: Record<string, string>; timeout?: number };

/** Why a request failed. `kind` is such as `not found`, `conflict`, `forbidden`, `unavailable`. */
export class DqError extends Error {
  constructor(
    readonly kind: string,
    message: string,
    readonly remedy?: string,
  ) {
    super(message);
  }
}

export class Http {
  readonly #urls: string[];
  readonly #headers: Record<string, string>;
  readonly #onRetry?: (error: DqError) => void;

  constructor(options: ConnectionOptions, onRetry?: (error: DqError) => void) {
    const { url = process.env.DQ_API, token = process.env.DQ_TOKEN } = options;
    const urls = [url ?? "http://127.0.0.1:7373"].flat();
    this.#urls = urls.map((url) => new URL(url).href.replace(/\/$/, ""));
    this.#headers = { "content-type": "application/json" };
    if (token) this.#headers.authorization = `Bearer ${token}`;
    this.#onRetry = onRetry;
  }

  /** Sends a request; while the server is away, again and again, to each address in turn. */
  async send(method: string, path: string, call: Call = {}): Promise<any> {
    const end = performance.now() + (call.retryFor ?? 10_000);
    for (let backoff = 100; ; backoff = Math.min(2 * backoff, 5_000)) {
      const url = this.#urls[0]!;
      try {
        return await this.#sendOnce(method, url + path, call);
      } catch (error: any) {
        const pause = backoff * (0.5 + Math.random() / 2);
        const isTemporary = ["unavailable", "closed", "outcome unknown"].includes(error.kind);
        if (!isTemporary || performance.now() + pause > end) throw error;
        this.#onRetry?.(error);
        // Otherwise another call has passed to the next server.
        if (this.#urls[0] === url) this.#urls.push(this.#urls.shift()!);
        await sleep(pause, undefined, { signal: call.signal });
      }
    }
  }

  async #sendOnce(method: string, url: string, { signal, timeout = 10_000, ...call }: Call) {
    signal?.throwIfAborted();
    // Not AbortSignal.any with AbortSignal.timeout: Node.js 20 forgets such timeouts.
    const controller = new AbortController();
    const abort = () => controller.abort(signal?.reason);
    const timer = setTimeout(() => controller.abort(new Error("timeout")), timeout);
    signal?.addEventListener("abort", abort);
    const headers = { ...this.#headers, ...call.headers };
    const body = JSON.stringify(call.body);
    try {
      const response = await fetch(url, { method, headers, body, signal: controller.signal });
      return answer(response, await response.text());
    } catch (error) {
      if (signal?.aborted || error instanceof DqError) throw error;
      throw new DqError("unavailable", `no answer from ${url}: ${describe(error)}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }
}

function answer({ status, ok, headers, url }: Response, text: string): unknown {
  const json = headers.get("content-type")?.includes("json") ? JSON.parse(text) : undefined;
  if (status === 204 || (json && ok)) return json;
  const kind =
    json?.title ?? (status >= 502 && status <= 504 ? "unavailable" : "unexpected answer");
  throw new DqError(kind, json?.detail ?? `${url} has answered ${status}`, json?.remedy);
}

/** Returns the error's text with its causes: `fetch` says why only there. */
export function describe(error: any): string {
  return error?.cause ? `${error}: ${describe(error.cause)}` : String(error);
}
