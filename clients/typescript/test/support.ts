import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Client, Worker, type WorkerOptions } from "dq-jobs";

export const OPERATOR = "operator-token-of-the-tests";
export const MAILER = "worker-token-of-the-tests";

/** Waits for a child's line with this text, and fails if the child ends before. */
export function lineOf(child: ChildProcess, text: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let seen = "";
    const lines = createInterface({ input: child.stdout! });
    lines.on("line", (line) => {
      seen += `${line}\n`;
      if (line.includes(text)) resolve(line);
    });
    lines.on("close", () => reject(new Error(`no line with ${text} in:\n${seen}`)));
  });
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

/** A `dq serve` on SQLite in a temporary directory. */
export class Server {
  readonly directory = mkdtempSync(join(tmpdir(), "dq-jobs-"));
  readonly port: number;
  #child?: ChildProcess;

  private constructor(port: number) {
    this.port = port;
  }

  static async start(settings = ""): Promise<Server> {
    const server = new Server(await freePort());
    const config = `
      [backend]
      type = "sqlite"
      path = "jobs.db"
      [serve]
      address = "127.0.0.1:${server.port}"
      [serve.tokens.shop]
      role = "operator"
      token = "${OPERATOR}"
      [serve.tokens.mailer]
      role = "worker"
      queues = ["MAIL"]
      token = "${MAILER}"
      [defaults]
      backoff = { initial = "10ms", factor = 1.0, max = "10ms", jitter = 0.0 }
      ${settings}`;
    writeFileSync(join(server.directory, "dq.toml"), config);
    await server.restart();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async restart(): Promise<void> {
    const program = process.env.DQ_BIN;
    if (!program)
      throw new Error("set DQ_BIN to the program dq: cargo build -p dq-cli builds target/debug/dq");
    const stdio = ["ignore", "pipe", "inherit"] as const;
    const env = { ...process.env, RUST_LOG: "warn" };
    this.#child = spawn(program, ["serve"], { cwd: this.directory, env, stdio: [...stdio] });
    await lineOf(this.#child, "address");
  }

  async kill(): Promise<void> {
    this.#child!.kill("SIGKILL");
    if (this.#child!.exitCode === null && this.#child!.signalCode === null)
      await once(this.#child!, "exit");
  }

  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.directory, { recursive: true });
  }

  client(token = OPERATOR): Client {
    return new Client({ url: this.url, token });
  }

  worker(options: WorkerOptions = {}): Worker {
    return new Worker({ url: this.url, token: OPERATOR, warn: () => {}, ...options });
  }
}

/** A promise, with the functions that end it. */
export function signal<Value = void>() {
  let resolve!: (value: Value) => void;
  const promise = new Promise<Value>((done) => (resolve = done));
  return { promise, resolve };
}

/** Runs a worker while `body` runs, and waits until it has stopped. */
export async function during(worker: Worker, body: () => Promise<void>): Promise<void> {
  const stop = new AbortController();
  const run = worker.run(stop.signal);
  try {
    await Promise.race([body(), run]);
  } finally {
    stop.abort();
    await run;
  }
}
