// Browsers refuse to start a Worker for a page that was opened from disk. The search needs one, so for such pages this
// stands in for it: a hidden frame that runs the worker's script and passes messages on.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (address) =>
        new Promise((loaded, failed) => {
          const script = inside.document.createElement("script");
          script.src = address;
          script.onload = loaded;
          script.onerror = failed;
          inside.document.body.append(script);
        });
      inside.importScripts = (...addresses) => Promise.all(addresses.map(load));
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside = inside;
      this.ready = load(new URL(url, location));
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
