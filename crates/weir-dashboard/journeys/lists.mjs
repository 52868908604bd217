// Lists that are read do not move: what came since is counted, and is added when the reader asks.

import assert from 'node:assert/strict';

import { api, journey, post } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();
const { id } = await api('POST', '/v1/destinations', {
  url: receiver.url('/lists'), name: 'lists', event_types: ['lists.*'], paused: true,
});
await post('lists.early', 6);

const shown = (page) => page.locator('tbody tr[id]').evaluateAll((rows) => rows.map((row) => row.id));
const pill = (page, text) => page.getByRole('link', { name: text, exact: true });

journey('the list of events keeps its rows, says how many are new, and adds them when asked', async (visit) => {
  const page = await visit.open('/events');
  const before = await shown(page);
  assert.equal(before.length, 6);
  // Nobody subscribes to this one, so no counter counts it.
  await post('elsewhere.made', 2);
  await pill(page, '2 new').waitFor();
  await post('lists.late', 1);
  await pill(page, '3 new').waitFor();
  assert.deepEqual(await shown(page), before, 'the rows stay where they are');
  await visit.check(page, 'events-new');
  await pill(page, '3 new').click();
  await page.getByRole('row').filter({ hasText: 'lists.late' }).waitFor();
  const after = await shown(page);
  assert.deepEqual(after.slice(3), before);
  assert.equal(await page.evaluate(() => document.activeElement.closest('tr').id), after[0], 'the reader goes on there');
  assert.equal(await page.locator('.pill').isHidden(), true);
});

journey('rows of deliveries show their state of now, and one that no longer matches stays in its place', async (visit) => {
  const all = await visit.open('/deliveries');
  const waiting = await visit.open('/deliveries?state=pending');
  const [before, pending] = [await shown(all), await shown(waiting)];
  const first = await api('GET', '/v1/deliveries?order=oldest&limit=1');
  const row = (page) => page.locator(`#row-${first.data[0].id}`);
  await api('POST', `/v1/deliveries/${first.data[0].id}/cancel`);
  await row(all).getByText('cancelled').waitFor();
  assert.deepEqual(await shown(all), before);
  await waiting.locator(`#row-${first.data[0].id}.gone`).waitFor();
  await pill(waiting, '1 no longer here').waitFor();
  assert.deepEqual(await shown(waiting), pending);
  await pill(waiting, '1 no longer here').click();
  await row(waiting).waitFor({ state: 'detached' });
  assert.deepEqual(await shown(waiting), pending.filter((shownId) => shownId !== `row-${first.data[0].id}`));
});

journey('deliveries that arrive by the hundred move no row', async (visit) => {
  await api('PATCH', `/v1/destinations/${id}`, { paused: false });
  const page = await visit.open('/deliveries');
  const before = await shown(page);
  await page.locator('a.row').nth(2).focus();
  await post('lists.flood', 150);
  await pill(page, '100+ new').waitFor();
  assert.deepEqual(await shown(page), before);
  assert.equal(await page.evaluate(() => document.activeElement.closest('tr').id), before[2]);
  await pill(page, '100+ new').click();
  await page.getByRole('row').filter({ hasText: 'lists.flood' }).first().waitFor();
});
