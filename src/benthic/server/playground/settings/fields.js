// What can be set, its ranges and its defaults; the panel and the request are made from this.

/**
 * Numbers of a request. `null` stands for "not sent": the server's default. `neutral` is where the slider rests then;
 * `isOpen` says that more may be typed than the slider reaches.
 */
export const NUMBERS = [
  {
    name: "temperature",
    label: "Temperature",
    min: 0,
    max: 2,
    step: 0.05,
    neutral: 1,
    hint: "0 takes the most likely token each time",
  },
  {
    name: "top_p",
    label: "Top p",
    min: 0.01,
    max: 1,
    step: 0.01,
    neutral: 1,
    hint: "Draw from the likeliest tokens that make up this share",
  },
  {
    name: "top_k",
    label: "Top k",
    min: 0,
    max: 200,
    step: 1,
    neutral: 0,
    isOpen: true,
    hint: "Draw from this many tokens; 0 is all",
  },
  {
    name: "min_p",
    label: "Min p",
    min: 0,
    max: 1,
    step: 0.01,
    neutral: 0,
    hint: "Leave out what is less likely than this share of the best",
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    min: 0.5,
    max: 2,
    step: 0.05,
    neutral: 1,
    more: true,
    hint: "Above 1, tokens that occurred become less likely",
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    min: -2,
    max: 2,
    step: 0.1,
    neutral: 0,
    more: true,
    hint: "Subtracted once for each time a token was generated",
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    min: -2,
    max: 2,
    step: 0.1,
    neutral: 0,
    more: true,
    hint: "Subtracted from tokens that were generated",
  },
  { name: "max_tokens", label: "Longest answer", min: 1, isPlain: true, unit: "tokens", hint: "Thinking included" },
  { name: "seed", label: "Seed", min: 0, isPlain: true, hint: "The same seed gives the same answer" },
  { name: "budget", label: "Thinking budget", min: 0, isPlain: true, unit: "tokens", hint: "Then the answer begins" },
];

/** Efforts that the server knows; the empty one is not sent. */
export const EFFORTS = ["", "low", "medium", "high", "max"];

export const EXAMPLE_SCHEMA = JSON.stringify(
  {
    type: "object",
    properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
    required: ["name", "age", "city"],
    additionalProperties: false,
  },
  null,
  2,
);

export const EXAMPLE_TOOLS = [
  {
    name: "get_weather",
    description: "Get the current weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "City name" } },
      required: ["city"],
    },
  },
  {
    name: "calculator",
    description: "Evaluate an arithmetic expression",
    parameters: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
  },
  {
    name: "set_timer",
    description: "Set a timer",
    parameters: { type: "object", properties: { minutes: { type: "integer" } }, required: ["minutes"] },
  },
].map((tool) => ({ ...tool, parameters: JSON.stringify(tool.parameters, null, 2) }));

export function defaultSettings() {
  return {
    system: "",
    thinking: "default",
    effort: "",
    format: "text",
    schema: EXAMPLE_SCHEMA,
    regex: "",
    stop: "",
    tools: [],
    toolChoice: "auto",
    ...Object.fromEntries(NUMBERS.map(({ name }) => [name, null])),
  };
}

/** Stored settings with what they lack filled in, whatever version of the page stored them. */
export function restoreSettings(stored) {
  const settings = defaultSettings();
  for (const [name, fallback] of Object.entries(settings)) {
    const value = stored?.[name];
    const isNumber = NUMBERS.some((field) => field.name === name);
    if (isNumber ? typeof value === "number" : typeof value === typeof fallback && value !== null)
      settings[name] = value;
  }
  if (!Array.isArray(settings.tools)) settings.tools = [];
  return settings;
}

/** null, or what is wrong with the text of a JSON schema. */
export function schemaProblem(text) {
  let schema;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    return `No JSON yet: ${error.message}`;
  }
  const isObject = typeof schema === "object" && schema !== null && !Array.isArray(schema);
  return isObject ? null : "A schema is a JSON object";
}

/** How many settings differ from the defaults. */
export function numChanged(settings) {
  const defaults = defaultSettings();
  const ignored = new Set(["tools", "schema", "regex"]);
  ignored.delete(settings.format);
  const changed = Object.keys(defaults).filter((name) => !ignored.has(name) && settings[name] !== defaults[name]);
  return changed.length + settings.tools.filter((tool) => tool.enabled).length;
}
