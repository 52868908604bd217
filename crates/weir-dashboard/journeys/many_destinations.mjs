// 10,000 destinations: the overview stays one short page, and each of them is found in a moment.
//
// The times are printed (`--nocapture`). The bound is generous, because Weir is not optimised in tests; the load tests
// hold the release to its own.

import assert from 'node:assert/strict';

import { api, figure, journey, post, ready } from './browser.mjs';

const COUNT = 10_000;
const CREATED_AT_ONCE = 64;
const PAGE = 50;
/** Every hundredth is paused. */
const PAUSED_EACH = 100;
const LONGEST_MS = 5_000;
/** More than a page of rows with its frame has. */
const MOST_ELEMENTS = 4_000;

const name = (n) => `partner ${String(n).padStart(5, '0')}`;
const names = (page) => page.locator('table.overview a.row').allTextContents();
const namesFrom = (first, step = 1) => Array.from({ length: PAGE }, (_, n) => name(first + n * step));

/** Does something and prints how long it took, which must not be long. */
async function timed(what, doIt) {
  const began = performance.now();
  const result = await doIt();
  const took = Math.round(performance.now() - began);
  console.log(`${what}: ${took} ms`);
  assert.ok(took < LONGEST_MS, `${what} took ${took} ms`);
  return result;
}

/** The page holds one page of rows, however many destinations there are. */
async function assertShort(page) {
  assert.equal(await page.locator('table.overview tbody tr').count(), PAGE);
  const elements = await page.evaluate(() => document.querySelectorAll('*').length);
  assert.ok(elements < MOST_ELEMENTS, `the page has ${elements} elements`);
}

const began = performance.now();
const ids = new Array(COUNT);
let next = 0;
await Promise.all(Array.from({ length: CREATED_AT_ONCE }, async () => {
  while (next < COUNT) {
    const n = next;
    next += 1;
    const destination = {
      url: `https://example.com/hooks/${n}`, name: name(n), event_types: [`p${n}.*`], paused: n % PAUSED_EACH === 0,
      rate_limits: [{ limit: 1 + (n % 50), period: 'second' }],
    };
    ids[n] = (await api('POST', '/v1/destinations', destination)).id;
  }
}));
console.log(`${COUNT} destinations created in ${Math.round(performance.now() - began)} ms`);

journey('the first page and the next one load quickly, and hold one page of rows', async (visit) => {
  const page = await visit.open('/status');
  await timed('first page', () => page.goto('/'));
  assert.equal(await figure(page, 'Destinations').textContent(), '10,000');
  await page.getByText('1–50 of 10,000, page 1 of 200').waitFor();
  assert.equal(await page.locator('table.overview .spark').count(), PAGE, 'each row has its picture');
  await assertShort(page);
  await timed('page by name', () => page.goto('/?sort=name'));
  assert.deepEqual(await names(page), namesFrom(0));
  await timed('next page', async () => {
    await page.getByRole('link', { name: 'Next page' }).click();
    await page.waitForURL(/cursor=/);
  });
  assert.deepEqual(await names(page), namesFrom(PAGE));
  await assertShort(page);
  await page.getByText('51–100 of 10,000, page 2 of 200').waitFor();
  await timed('sorted by the drain', () => page.getByRole('columnheader', { name: 'Drains in' }).getByRole('link').click());
  await page.waitForURL(/sort=drain_eta/);
  await page.goto('/?sort=name');
  await page.getByRole('link', { name: 'Next page' }).click();
  await page.waitForURL(/cursor=/);
  await timed('previous page', () => page.getByRole('link', { name: 'Previous page' }).click());
  await page.waitForURL(/cursor=/);
  assert.deepEqual(await names(page), namesFrom(0));
  await page.getByRole('link', { name: 'First page' }).click();
  await page.waitForURL((address) => !address.search.includes('cursor='));
  assert.deepEqual(await names(page), namesFrom(0));
});

journey('one is found by its name, by its id and by its state', async (visit) => {
  const page = await visit.open('/');
  await page.getByLabel('Part of the name or URL').fill('NER 07777');
  await timed('search', async () => {
    await page.keyboard.press('Enter');
    await page.waitForURL(/q=NER/);
  });
  assert.deepEqual(await names(page), [name(7_777)]);

  await page.goto('/');
  await page.getByLabel('State').selectOption('paused');
  await page.getByLabel('Order', { exact: true }).selectOption('name');
  await timed('filter by state', async () => {
    await page.getByRole('button', { name: 'Show' }).click();
    await page.waitForURL(/state=paused/);
  });
  assert.deepEqual(await names(page), namesFrom(0, PAUSED_EACH));
  await page.getByRole('link', { name: 'Next page' }).click();
  await page.waitForURL(/cursor=/);
  assert.deepEqual(await names(page), namesFrom(PAGE * PAUSED_EACH, PAUSED_EACH));
  assert.equal(await page.getByRole('link', { name: 'Next page' }).count(), 0, 'these were the last');

  await ready(page);
  await page.keyboard.press('/');
  await page.keyboard.type(ids[4_321]);
  await timed('jump by id', async () => {
    await page.keyboard.press('Enter');
    await page.waitForURL(`**/destinations/${ids[4_321]}`);
  });
  await page.getByRole('heading', { name: name(4_321) }).waitFor();
});

journey('live updates go on, and bring the one in trouble to the top', async (visit) => {
  const page = await visit.open('/');
  const stuck = 7_700;
  assert.equal(stuck % PAUSED_EACH, 0, 'it is paused, so that its backlog stays');
  const first = page.locator('table.overview tbody tr').first();
  assert.equal(await first.filter({ hasText: name(stuck) }).count(), 0);
  await timed('live update', async () => {
    await post(`p${stuck}.made`, 3);
    await first.filter({ hasText: name(stuck) }).waitFor();
  });
  await first.getByRole('cell', { name: '3', exact: true }).waitFor();
  const asOf = page.locator('.asof time');
  const snapshots = new Set();
  while (snapshots.size < 3) {
    const shown = await asOf.getAttribute('datetime');
    snapshots.add(shown);
    await page.waitForFunction((at) => document.querySelector('.asof time').dateTime !== at, shown);
  }
  await assertShort(page);
  assert.equal(await figure(page, 'Waiting').textContent(), '3');
  await timed('only what is paused', () => page.getByRole('link', { name: '100 paused' }).click());
  await page.waitForURL(/state=paused/);
  await page.getByText('1–50 of 100, page 1 of 2').waitFor();
});
