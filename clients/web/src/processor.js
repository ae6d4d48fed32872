// The audio worklet: a Mixer between its message port and its output. Loaded by Player.

import { Mixer } from "./mixer.js";

class RtDrama3Processor extends AudioWorkletProcessor {
  #open = true;

  constructor() {
    super();
    const mixer = new Mixer((report) => this.port.postMessage(report));
    this.port.onmessage = ({ data }) => {
      if (data.type === "close") this.#open = false;
      else mixer.take(data);
    };
    this.mixer = mixer;
  }

  process(inputs, outputs) {
    const [first, ...others] = outputs[0];
    this.mixer.render(first, currentFrame);
    for (const channel of others) channel.set(first);
    return this.#open;
  }
}

registerProcessor("rt-drama3", RtDrama3Processor);
