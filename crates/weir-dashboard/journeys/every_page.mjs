// Every page, with data full of HTML: nothing of it becomes markup, on a telephone and without JavaScript too.

import assert from 'node:assert/strict';

import { api, journey } from './browser.mjs';
import { receive } from './receiver.mjs';

const HTML = `<img src=x onerror="alert(1)"><script>alert(2)</script>'"&amp;{{7*7}}</textarea>`;
const receiver = await receive();
// As Weir normalises it.
const path = `/hooks?${encodeURIComponent(HTML).replaceAll("'", '%27')}`;
receiver.answer(path, { status: 500, headers: { 'x-reason': HTML }, text: HTML });

const destination = await api('POST', '/v1/destinations', {
  url: receiver.url(path), name: HTML, event_types: ['*'], headers: { 'x-note': HTML }, retry: { max_attempts: 1 }, breaker: null,
});
const event = await api('POST', '/v1/events', {
  type: 'html.made', data: { [HTML]: HTML }, idempotency_key: HTML, ordering_key: HTML,
});
await api('POST', '/v1/keys', { name: HTML, role: 'read' });
await api('PUT', '/v1/event-types/html.made', { description: HTML, example: { [HTML]: HTML }, schema: { title: HTML } });
const group = await api('POST', '/v1/limit-groups', { name: HTML, rate_limits: [{ limit: 5, period: 'second' }] });
await api('PATCH', `/v1/destinations/${destination.id}`, { limit_group: group.id, weight: 3 });
let delivery;
do [delivery] = (await api('GET', '/v1/deliveries?state=dead,failed,delivered')).data; while (!delivery);
assert.equal(delivery.state, 'dead');
await api('PATCH', `/v1/destinations/${destination.id}`, { paused: true, rate_limits: [{ limit: 5, period: 'minute' }] });
const replay = await api('POST', '/v1/replays', { destination: destination.id });
await api('POST', '/v1/events', { type: 'html.waiting', data: HTML });

const own = `/destinations/${destination.id}`;
const typed = encodeURIComponent(HTML);
/** Every page of the dashboard; those with a filter with one that is HTML too. */
const PAGES = [
  '/', `/?q=${typed}&tenant=${typed}`, own, `${own}/proof`, `${own}/backlog`, `${own}/settings`, `${own}/purge`,
  `${own}/activity`, `${own}/activity?actor=${typed}`, '/destinations/new', '/replays/new', `/replays/new?tenant=${typed}`,
  `${own}/purge?event_type=${typed}`, '/deliveries', `/deliveries?destination=${typed}`, `/deliveries/${delivery.id}`,
  '/dead-letters', `/dead-letters?tenant=${typed}`, '/events', `/events?idempotency_key=${typed}`, `/events/${event.id}`,
  '/replays', `/replays/${replay.id}`, `/replays/new?destination=${destination.id}`, '/alerts', '/activity',
  `/activity?actor=${typed}&destination=${typed}`, '/keys', '/status', '/shedding', '/event-types', `/event-types?q=${typed}`, '/event-types/html.made', '/limit-groups', `/limit-groups/${group.id}`, `/jump?id=${typed}`, `/login?next=${typed}`,
];

/** Opens each page and hands it over. A filter that the API refuses is a page too. */
async function forEachPage(visit, options, look) {
  visit.expect(400, /%3C/);
  visit.expect(404, /%3C/);
  visit.expect(422, /%3C/);
  const page = await visit.open('/', options);
  page.on('dialog', (dialog) => assert.fail(`${page.url()} ran a script: ${dialog.message()}`));
  for (const path of PAGES) {
    await page.goto(path);
    const foreign = await page.locator('img, body script, b b, [onerror]').count();
    assert.equal(foreign, 0, `${path} has markup from data`);
    assert.equal(await page.locator('h1').count(), 1, `${path} has one heading`);
    await look(page, path);
  }
}

journey('HTML in names, URLs, headers, bodies, keys and filters stays text on every page', async (visit) => {
  await forEachPage(visit, {}, (page, path) => visit.check(page, path));
});

journey('every page fits a telephone', async (visit) => {
  await forEachPage(visit, { width: 360 }, (page, path) => visit.assertFits(page, path));
});

journey('every page works without JavaScript, and shows nothing that needs it', async (visit) => {
  await forEachPage(visit, { scripts: false }, async (page, path) => {
    for (const name of ['Live', 'Copy', 'Keyboard shortcuts', 'UTC']) {
      assert.equal(await page.getByRole('button', { name, exact: true }).count(), 0, `${path} shows ${name}`);
    }
    // What is folded is opened without a script too.
    const folded = page.locator('main details:not([open]) > summary');
    for (let left = await folded.count(); left > 0; left -= 1) await folded.first().click();
    assert.equal(await folded.count(), 0, path);
    await visit.assertFits(page, path);
  });
});

journey('a refused form shows what was typed as text', async (visit) => {
  const page = await visit.open(`${own}/settings`);
  page.on('dialog', (dialog) => assert.fail(`a script ran: ${dialog.message()}`));
  visit.expect(422, /\/settings$/);
  await page.getByLabel('Event types').fill(HTML);
  await page.getByRole('button', { name: 'Save settings' }).click();
  await page.getByText(/Not saved\./).waitFor();
  assert.equal(await page.getByLabel('Event types').inputValue(), HTML);
});
