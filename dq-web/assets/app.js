// Keeps the visible page up to date and sends forms without a reload. Pages work without it.
"use strict";
(() => {
  // Without the user name and password that the address of the page may contain.
  const base = location.origin + location.pathname;
  const main = document.getElementById("main");

  // An XMLHttpRequest parses a page without running it, and needs no HTML in strings.
  const load = (method, address, body) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open(method, new URL(address, base));
      request.responseType = "document";
      if (body) request.setRequestHeader("content-type", "application/x-www-form-urlencoded");
      request.onload = () => resolve(request);
      request.onerror = reject;
      request.ontimeout = reject;
      request.onabort = reject;
      // A change may take long, and reading must not end for good with a request that hangs.
      if (method === "GET") request.timeout = 60000;
      request.send(body);
    });

  // Replaces the parts that have changed, except the one in which somebody types. A part must be on
  // every rendering of its page, if only empty: one that is new is not added.
  const update = (page, all) => {
    for (const part of [...main.querySelectorAll("[data-live]")]) {
      const next = page.getElementById(part.id);
      if (!next) {
        if (all) part.remove();
        continue;
      }
      const focused = part.contains(document.activeElement) ? document.activeElement : null;
      if (!all && focused && focused.matches("input, select, textarea")) continue;
      if (next.isEqualNode(part)) continue;
      // The keyboard stays at the same control.
      const controls = "a, button, input, summary";
      const position = focused ? [...part.querySelectorAll(controls)].indexOf(focused) : -1;
      const fresh = document.importNode(next, true);
      part.replaceWith(fresh);
      if (position >= 0) {
        const list = fresh.querySelectorAll(controls);
        const target = list[Math.min(position, list.length - 1)] || main;
        target.focus({ preventScroll: true });
      }
    }
  };

  // The navigation leads back to the jobs and queues that this window showed last. On their page it
  // leads to all of them.
  for (const link of document.querySelectorAll("a[data-keep]")) {
    const target = new URL(link.href);
    const name = "dq " + target.pathname;
    const stored = sessionStorage.getItem(name);
    if (target.pathname === location.pathname) {
      const shown = new URLSearchParams(location.search);
      for (const passing of ["lang", "done", "after"]) shown.delete(passing);
      sessionStorage.setItem(name, shown);
    } else if (stored !== null) {
      const query = new URLSearchParams(stored);
      const lang = target.searchParams.get("lang");
      if (lang) query.set("lang", lang);
      target.search = query;
      link.href = target.href;
    }
  }

  const say = (nodes) => document.getElementById("notice").replaceChildren(...nodes);

  // One request at a time, and then a pause of four times as long as it took, up to 30 s: a page that
  // costs the store much must not keep it busy for as long as a tab shows it.
  let sequence = 0;
  let busy = false;
  let again = false;
  const refresh = async () => {
    if (!main.querySelector("[data-live]")) return;
    const query = new URLSearchParams(location.search);
    // A search compares thousands of payloads: only a person repeats it.
    if (query.get("contains")) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const mine = ++sequence;
    const started = performance.now();
    query.delete("done");
    const request = await load("GET", "?" + query).catch(() => null);
    if (mine === sequence && request && request.status === 200 && request.response) {
      update(request.response, false);
    }
    setTimeout(() => {
      busy = false;
      if (again && document.visibilityState === "visible") refresh();
      again = false;
    }, Math.min(4 * (performance.now() - started), 30000));
  };

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    event.preventDefault();
    const fields = new URLSearchParams(new FormData(form, event.submitter));
    sequence++;
    const request = await load("POST", form.getAttribute("action"), fields.toString()).catch(() => null);
    const page = request && request.response;
    const problem = page && page.getElementById("problem");
    if (problem) {
      say([document.importNode(problem, true)]);
      return;
    }
    // An error that is no page of this server, such as one of a proxy. After 401 the browser asks who it
    // is, when the page loads again.
    if (request && request.status >= 400 && request.status !== 401) {
      const { refused, unknown } = document.getElementById("notice").dataset;
      const notice = document.createElement("p");
      notice.className = "notice failed";
      notice.textContent = (request.status < 500 ? refused : unknown) + " (" + request.status + ")";
      say([notice]);
      refresh();
      return;
    }
    if (!page) {
      location.reload();
      return;
    }
    const path = (address) => new URL(address, base).pathname;
    if (path(request.responseURL) !== location.pathname) {
      location.assign(new URL(request.responseURL).href);
      return;
    }
    say([...page.getElementById("notice").childNodes].map((node) => document.importNode(node, true)));
    form.reset();
    update(page, true);
  });

  // Browsers allow six connections to a host, and many windows may be visible: the window that has
  // the lock has one for all of them, and passes its events on. Without TLS there are no locks, and
  // each visible window has a connection of its own.
  const light = document.getElementById("live");
  const directory = new URL(".", base);
  const channel = new BroadcastChannel("dq " + directory);
  let events = null;
  const handle = (what) => {
    light.hidden = what === "down";
    if (what === "overview") refresh();
  };
  const publish = (what) => {
    handle(what);
    channel.postMessage(what);
  };
  channel.onmessage = (message) => {
    if (message.data !== "hello") handle(message.data);
    else if (events) channel.postMessage(events.readyState === EventSource.OPEN ? "up" : "down");
  };
  const open = () => {
    const source = new EventSource(new URL("v1/events", directory));
    events = source;
    source.addEventListener("overview", () => publish("overview"));
    source.onopen = () => publish("up");
    source.onerror = () => {
      // Streams end after a while, and the browser opens another one after a second.
      setTimeout(() => events === source && source.readyState !== EventSource.OPEN && publish("down"), 2000);
      // The browser itself gives up after an error of a proxy, such as while the server restarts.
      const retry = () => events === source && open();
      if (source.readyState === EventSource.CLOSED) setTimeout(retry, 5000);
    };
  };

  let stop = null;
  let missed = false;
  const start = () => {
    const leave = new AbortController();
    // Times on the page pass without an event.
    const timer = setInterval(refresh, 10000);
    stop = () => {
      clearInterval(timer);
      leave.abort();
      if (events) events.close();
      events = null;
      stop = null;
      missed = true;
    };
    if (!navigator.locks) {
      open();
      return;
    }
    const hold = () =>
      new Promise((release) => {
        leave.signal.addEventListener("abort", release);
        if (leave.signal.aborted) release();
        else open();
      });
    // Fails if this window leaves before it has the lock.
    navigator.locks.request("dq " + directory, { signal: leave.signal }, hold).catch(() => {});
    channel.postMessage("hello");
    // A new connection begins with an event; a window that shares one has missed those before.
    if (missed) refresh();
  };
  const connect = () => {
    const visible = document.visibilityState === "visible";
    if (visible && !stop) start();
    else if (!visible && stop) stop();
  };
  document.addEventListener("visibilitychange", connect);
  addEventListener("pagehide", () => stop && stop());
  // From the browser's cache of pages.
  addEventListener("pageshow", connect);
  connect();

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
    const find = [...document.querySelectorAll("input[type=search]")].find((input) => input.offsetParent);
    if (find) {
      event.preventDefault();
      find.focus();
    }
  });
})();
