/**
 * JSON whose integers keep all of their digits.
 *
 * A JavaScript number holds integers up to 2^53 exactly, and ids of other systems have 64 bits. Larger integers are read
 * as `bigint`, and a `bigint` is written as a number. `JSON` does neither in Node 18 and 20, so such an integer passes
 * through it as a string that begins with a mark.
 */

/** A number; between the strings of a text there is no other digit. */
const NUMBER = /-?\d[\d.eE+-]*/g;
/** Only a text with as many digits in a row may have an integer that a number cannot hold. */
const LARGE = /\d{16}/;

/** A string that no other string begins with. */
function newMark(): string {
  return `integer-${Math.random()}-${Math.random()}:`;
}

export function parse(text: string): unknown {
  if (!LARGE.test(text)) return JSON.parse(text);
  const mark = newMark();
  const marked = outsideStrings(text, (part) =>
    part.replace(NUMBER, (number) => {
      const isLarge = /^-?\d+$/.test(number) && !Number.isSafeInteger(Number(number));
      return isLarge ? `"${mark}${number}"` : number;
    }),
  );
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  );
}

/** Changes what is not part of a string. A regular expression over strings would need a stack as deep as they are long. */
function outsideStrings(text: string, change: (part: string) => string): string {
  let changed = "";
  for (let at = 0; ; ) {
    const open = text.indexOf('"', at);
    if (open < 0) return changed + change(text.slice(at));
    changed += change(text.slice(at, open));
    let close = text.indexOf('"', open + 1);
    while (close >= 0 && isEscaped(text, close)) close = text.indexOf('"', close + 1);
    // Without its end, the text is not JSON.
    at = close < 0 ? text.length : close + 1;
    changed += text.slice(open, at);
  }
}

/** Whether an odd number of backslashes precedes. */
function isEscaped(text: string, quote: number): boolean {
  let before = quote;
  while (text[before - 1] === "\\") before--;
  return (quote - before) % 2 === 1;
}

export function stringify(body: unknown): string {
  const mark = newMark();
  let hasMarks = false;
  const text = JSON.stringify(body, function (this: Record<string, unknown>, name: string, value: unknown) {
    // Some programs give `BigInt` a `toJSON`, whose result is in `value`.
    const integer = typeof this[name] === "bigint" ? this[name] : value;
    if (typeof integer !== "bigint") return value;
    hasMarks = true;
    return `${mark}${integer}`;
  });
  return hasMarks ? text.replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1") : text;
}
