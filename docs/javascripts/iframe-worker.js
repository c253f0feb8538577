// Pages that are opened from disk may not start workers, and the search is one. Here the same
// script runs in a hidden frame instead, and messages go to and fro as they would with a worker.
"use strict";

class IFrameWorker extends EventTarget {
  #waiting = [];
  #frame = document.createElement("iframe");
  #ready = false;

  constructor(address) {
    super();
    this.#frame.hidden = true;
    document.body.append(this.#frame);
    const inside = this.#frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    script.src = address;
    script.addEventListener("load", () => this.#begin());
    inside.document.body.append(script);
  }

  postMessage(data) {
    if (this.#ready) this.#deliver(data);
    else this.#waiting.push(data);
  }

  terminate() {
    this.#frame.remove();
  }

  #begin() {
    this.#ready = true;
    for (const data of this.#waiting.splice(0)) this.#deliver(data);
  }

  #deliver(data) {
    const inside = this.#frame.contentWindow;
    inside.dispatchEvent(new inside.MessageEvent("message", { data }));
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
