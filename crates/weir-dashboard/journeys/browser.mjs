// The frame of a journey: a real Weir, a browser with several pages, and what must hold on every page.
//
// A journey is a test of `node:test`. It gets a `visit`, with which it opens pages and calls the API. When it ends, the
// pages must have shown no error on the console, no violation of the content security policy, and no failed request
// that the journey did not announce with `visit.expect`. Nothing is tried twice, and nothing sleeps: a journey awaits
// locators and responses.
//
// The environment names the programs and the server:
//   WEIR_TEST_CHROMIUM       the browser
//   WEIR_TEST_BROWSER_TOOLS  the `package.json` of a folder in which playwright-core and axe-core are installed
//   WEIR_URL, WEIR_KEY       the address of Weir, and a key with the role `admin`
//   WEIR_TEST_PICTURES       if set, the folder into which `visit.picture` writes

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, test } from 'node:test';

const tools = createRequire(given('WEIR_TEST_BROWSER_TOOLS'));
const { chromium } = tools('playwright-core');

/** A locator or a response that does not come within this time fails. */
const PATIENCE_MS = 15_000;
const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
/** WCAG 2.2 AA, and what axe calls good practice. */
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
/** Those of them that look at colours. */
const RULES_OF_COLOURS = ['color-contrast', 'link-in-text-block'];

export const url = given('WEIR_URL');
export const key = given('WEIR_KEY');

let browser;
after(() => browser?.close());

/** Declares a journey. It fails if its steps fail, or if one of its pages had an error. */
export function journey(name, steps) {
  // A journey may wait for other tests. This only ends one that hangs.
  test(name, { timeout: 240_000 }, async () => {
    browser ??= await chromium.launch({ executablePath: given('WEIR_TEST_CHROMIUM'), args: FLAGS });
    const visit = new Visit();
    try {
      await steps(visit);
      visit.assertNoErrors();
    } finally {
      await visit.leave();
    }
  });
}

/** A call of the API with JSON, which must succeed. Returns the JSON answer. */
export async function api(method, path, body, { as = key } = {}) {
  const headers = { authorization: `Bearer ${as}`, 'content-type': 'application/json' };
  const response = await fetch(`${url}${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

/** Posts so many events of a type. */
export const post = (type, count) =>
  api('POST', '/v1/events/batch', { events: Array.from({ length: count }, (_, n) => ({ type, data: { n } })) });

/** Logs in on the page of the login. */
export async function logIn(page, typed = key) {
  await page.getByLabel('API key').fill(typed);
  await page.getByRole('button', { name: 'Log in' }).click();
}

/** The script of the page has bound the keys. */
export const ready = (page) => page.locator('body[data-script=on]').waitFor();

/** Opens a page again until it shows a text: what it waits for happens at the server, and the page is not live. */
export async function shows(page, path, text) {
  for (;;) {
    await page.goto(path);
    if (await page.getByText(text).count()) return;
  }
}

/** The value of a figure with this name. */
export const figure = (page, name) => page.locator(`.figures dt:text-is("${name}") + dd`);

class Visit {
  #contexts = [];
  #findings = [];
  #expected = [];

  /**
   * Opens a page in a browser of its own.
   * @param path the path on the server, or a whole URL
   * @param as the key of the session; null: nobody has logged in
   */
  async open(path, { as = key, theme = 'light', zone = 'UTC', width = 1280, height = 900, scripts = true } = {}) {
    const context = await browser.newContext({
      baseURL: url,
      colorScheme: theme,
      javaScriptEnabled: scripts,
      // An animation would change colours and places while axe reads them.
      reducedMotion: 'reduce',
      timezoneId: zone,
      viewport: { width, height },
    });
    this.#contexts.push(context);
    context.setDefaultTimeout(PATIENCE_MS);
    await context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (event) => {
        console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`);
      });
    });
    if (as !== null) {
      const answer = await context.request.post(new URL('/v1/session', url).href, { data: { key: as } });
      assert.equal(answer.status(), 201, `the key is refused: ${await answer.text()}`);
    }
    const page = await context.newPage();
    this.#watch(page);
    await page.goto(path);
    return page;
  }

  /** Announces answers with this status to requests whose URL matches. */
  expect(status, pattern) {
    this.#expected.push({ status, pattern });
  }

  /**
   * The page has no violation of the rules of accessibility, in light and in dark, and fits its width. Only for pages
   * with scripts: axe waits for a timer, which does not run without them.
   */
  async check(page, name = page.url(), themes = ['light', 'dark']) {
    // From its top: further down, the bar that stays in view hides a part of whatever is below it.
    await page.evaluate(() => globalThis.scrollTo(0, 0));
    await page.evaluate(await readFile(tools.resolve('axe-core/axe.min.js'), 'utf8'));
    for (const [at, theme] of themes.entries()) {
      await page.emulateMedia({ colorScheme: theme });
      // The themes differ in their colours only.
      const rules = at === 0 ? RULES : RULES_OF_COLOURS;
      const { violations } = await page.evaluate((rules) => globalThis.axe.run({ runOnly: rules }), rules);
      const found = violations.flatMap(({ id, help, nodes }) =>
        nodes.map((node) => `${id} (${help}): ${node.html.slice(0, 200)} ${node.any.map((one) => one.message).join('; ')}`));
      assert.deepEqual(found, [], `${name} in ${theme}`);
    }
    await this.assertFits(page, name);
    await this.picture(page, name);
  }

  /** The page is not wider than its window. */
  async assertFits(page, name) {
    const [shown, needed] = await page.evaluate(() => {
      const { clientWidth, scrollWidth } = document.documentElement;
      return [clientWidth, scrollWidth];
    });
    assert.ok(needed <= shown, `${name} is ${needed} px wide in a window of ${shown} px`);
  }

  /** Writes pictures of the page in both themes and on a telephone, if somebody wants to look at them. */
  async picture(page, name) {
    const folder = process.env.WEIR_TEST_PICTURES;
    if (!folder) return;
    const file = name.replace(/^https?:\/\/[^/]+/, '').replace(/[^a-z0-9]+/gi, '-').replace(/^-|-$/g, '').slice(0, 60) || 'root';
    const size = page.viewportSize();
    for (const [theme, width] of [['light', size.width], ['dark', size.width], ['light', 360]]) {
      await page.emulateMedia({ colorScheme: theme });
      await page.setViewportSize({ ...size, width });
      await page.screenshot({ path: `${folder}/${file}-${theme}-${width}.png`, fullPage: true });
    }
    await page.setViewportSize(size);
  }

  assertNoErrors() {
    assert.deepEqual(this.takeFindings(), [], 'the pages had errors');
  }

  /** What the pages did wrong since the last call. Only the journey that tests this frame may take it. */
  takeFindings() {
    return this.#findings.splice(0);
  }

  async leave() {
    await Promise.all(this.#contexts.map((context) => context.close()));
  }

  #watch(page) {
    page.on('console', (message) => {
      // Failed requests are reported here too, without what failed; see `response` and `requestfailed`.
      const isOfRequest = /^Failed to load resource|htmx:error: Failed to fetch|htmx:sse:error: network error/.test(message.text());
      if (message.type() === 'error' && !isOfRequest) {
        this.#findings.push(`console: ${message.text()} (${page.url()})`);
      }
    });
    page.on('pageerror', (error) => this.#findings.push(`script: ${error.stack ?? error}`));
    page.on('requestfailed', (request) => {
      const { errorText } = request.failure();
      // The browser ends the requests of a page when it leaves the page, and a stream has no other end.
      if (errorText !== 'net::ERR_ABORTED') this.#finding(errorText, request);
    });
    page.on('response', (response) => {
      if (response.status() >= 400) this.#finding(response.status(), response.request());
    });
  }

  #finding(what, request) {
    const isExpected = this.#expected.some(({ status, pattern }) => status === what && pattern.test(request.url()));
    if (!isExpected) this.#findings.push(`${request.method()} ${request.url()}: ${what}`);
  }
}

function given(variable) {
  const value = process.env[variable];
  assert.ok(value, `${variable} is not set: run the journeys with \`cargo xtask test\``);
  return value;
}
