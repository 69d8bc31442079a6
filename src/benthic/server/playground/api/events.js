// Server-sent events from a stream of bytes: the data of each event, however the bytes were cut.

/**
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string>}
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Takes text in pieces and gives the data of the events that are complete. */
export class EventParser {
  #line = "";
  #data = [];
  #sawReturn = false;

  push(text) {
    const events = [];
    for (const character of splitLines(text)) {
      if (character === "\n" && this.#sawReturn) {
        this.#sawReturn = false;
        continue; // the second half of \r\n
      }
      this.#sawReturn = character === "\r";
      if (character === "\n" || character === "\r") this.#endLine(events);
      else this.#line += character;
    }
    return events;
  }

  #endLine(events) {
    const line = this.#line;
    this.#line = "";
    if (line === "") {
      if (this.#data.length) events.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line.startsWith("data:")) {
      this.#data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
    }
  }
}

function splitLines(text) {
  return text.split(/(\r|\n)/).filter((part) => part !== "");
}
