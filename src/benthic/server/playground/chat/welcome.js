// What an empty conversation shows: three things to try, each with the settings that it needs.

import { EXAMPLE_SCHEMA, EXAMPLE_TOOLS } from "../settings/fields.js";
import { el, icon } from "../shell/dom.js";

const EXAMPLES = [
  { icon: "sliders", title: "Think it over", text: "What is 347 + 285?", settings: { thinking: "on" } },
  { icon: "tool", title: "Call a tool", text: "What is the weather in Paris?", tool: EXAMPLE_TOOLS[0] },
  {
    icon: "code",
    title: "Answer in JSON",
    text: "Extract the data: Anna is 31 years old and lives in Oslo.",
    settings: { format: "schema", schema: EXAMPLE_SCHEMA },
  },
];

/** @param {(example: object) => void} onChoose */
export function welcome(onChoose) {
  return el(
    "section",
    { class: "welcome", "aria-label": "Examples" },
    el("h1", {}, "Ask the model something"),
    el("p", {}, "It runs on this server. Nothing you write goes anywhere else."),
    el(
      "div",
      { class: "examples" },
      EXAMPLES.map((example) =>
        el(
          "button",
          { type: "button", class: "example", onClick: () => onChoose(example) },
          icon(example.icon),
          el("strong", {}, example.title),
          el("span", {}, example.text),
        ),
      ),
    ),
  );
}
