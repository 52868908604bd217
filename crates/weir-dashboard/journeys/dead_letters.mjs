// From what failed to its replay: deliveries, dead letters, retry, replay, cancellation, events.

import assert from 'node:assert/strict';

import { api, journey, post, ready, shows } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();

/** A destination whose every delivery to `path` is tried once. */
const destination = (path, name, more = {}) =>
  api('POST', '/v1/destinations', {
    url: receiver.url(path), name, event_types: [`${name.toLowerCase()}.*`], retry: { max_attempts: 1 }, breaker: null, ...more,
  });

journey('dead letters are grouped, replayed with a typed confirmation, and the replay is cancelled', async (visit) => {
  receiver.answer('/broken', { status: 503 });
  const { id } = await destination('/broken', 'Broken', { rate_limits: [{ limit: 100, period: 'second', burst: 50 }] });
  await post('broken.made', 40);
  const page = await visit.open('/dead-letters');
  await shows(page, '/dead-letters', '40 in 1 group');
  await page.getByRole('cell', { name: 'HTTP 503', exact: true }).waitFor();
  await visit.check(page, 'dead-letters');

  // Slow enough to cancel it.
  receiver.answer('/broken', { status: 200 });
  await api('PATCH', `/v1/destinations/${id}`, { rate_limits: [{ limit: 1, period: 'second' }] });
  await page.getByRole('link', { name: /^Replay 40 to Broken/ }).click();
  await page.getByText('40 deliveries match').waitFor();
  await visit.check(page, 'replay-plan');
  const start = page.getByRole('button', { name: 'Replay 40 deliveries' });
  assert.equal(await start.isDisabled(), true);
  await page.getByLabel('Type replay 40 to confirm').fill('replay 40');
  await start.click();
  await page.getByText('The replay has started').waitFor();
  await page.locator('#replay dt:text-is("Delivered") + dd:not(:text-is("0"))').waitFor();
  await visit.check(page, 'replay');
  await page.getByRole('button', { name: 'Cancel replay' }).click();
  await page.getByText('The replay is cancelled').waitFor();
  await page.getByText('cancelled', { exact: true }).first().waitFor();
  await page.goto('/replays');
  await page.getByRole('row').filter({ hasText: 'cancelled' }).waitFor();
  await visit.check(page, 'replays');
});

journey('a delivery shows request and response, and is retried', async (visit) => {
  receiver.answer('/moody', { status: 500, headers: { 'x-reason': 'moody' }, text: '<b>no</b>' });
  await destination('/moody', 'Moody');
  await post('moody.made', 1);
  const page = await visit.open('/deliveries?state=dead&event_type=moody.*');
  await shows(page, '/deliveries?state=dead&event_type=moody.*', '1 match');
  await visit.check(page, 'deliveries');
  await page.getByRole('link', { name: 'moody.made' }).click();
  await page.getByText('x-reason: moody').waitFor();
  await page.getByText('<b>no</b>').waitFor();
  await visit.check(page, 'delivery');
  receiver.answer('/moody', { status: 200 });
  await page.getByRole('button', { name: 'Retry now' }).click();
  await page.getByText('It is due now').waitFor();
  const path = new URL(page.url()).pathname;
  await shows(page, path, 'HTTP 200');
  const [first, second] = receiver.arrivals('/moody');
  assert.equal(second.headers['webhook-id'], first.headers['webhook-id']);
  assert.equal(await page.locator('#raw-body').textContent(), second.body);

  await page.getByRole('link', { name: first.headers['webhook-id'] }).click();
  await page.getByRole('heading', { name: 'moody.made' }).waitFor();
  await visit.check(page, 'event');
  await page.getByRole('link', { name: 'Events' }).first().click();
  await page.getByRole('link', { name: 'moody.made' }).waitFor();
  await visit.check(page, 'events');
});

journey('the first page of a list follows what happens, and takes nothing from the reader', async (visit) => {
  const { id } = await destination('/followed', 'Followed', { paused: true });
  await post('followed.made', 2);
  const path = `/deliveries?destination=${id}`;
  const page = await visit.open(path);
  await ready(page);
  const rows = page.locator('#deliveries a.row');
  const has = (count) => rows.nth(count - 1).waitFor();
  // Rows that came later are counted, and added when the reader asks.
  const newer = (count, of = page) => of.getByRole('link', { name: `${count} new`, exact: true });
  const isFocused = (row) => row.evaluate((element) => element === document.activeElement);
  await has(2);

  await page.getByText('Filter', { exact: true }).click();
  await page.getByLabel('Error').fill('time');
  await post('followed.made', 1);
  await newer(1).waitFor();
  assert.equal(await page.getByLabel('Error').inputValue(), 'time');
  assert.equal(await isFocused(page.getByLabel('Error')), true);
  await newer(1).click();
  await has(3);
  assert.equal(await page.getByLabel('Error').inputValue(), 'time');

  // The reader goes on at the first row.
  await page.waitForFunction(() => document.activeElement.matches('a.row'));
  await page.keyboard.press('j');
  const row = page.locator(`a.row[href="${await rows.nth(1).getAttribute('href')}"]`);
  await post('followed.made', 1);
  await newer(1).waitFor();
  assert.equal(await isFocused(row), true, 'the row with the focus has it still');

  await row.evaluate((element) => getSelection().selectAllChildren(element));
  await post('followed.made', 1);
  // Another reader sees it, and two more snapshots.
  const other = await visit.open(path);
  await other.locator('#deliveries a.row').nth(4).waitFor();
  for (let seen = 0; seen < 2; seen += 1) await other.waitForResponse(/\/fragments\/deliveries\?/);
  assert.equal(await newer(1).count(), 1, 'the list waits for who has selected a text');
  assert.equal(await page.evaluate(() => String(getSelection())), 'followed.made');
  await page.evaluate(() => getSelection().removeAllRanges());
  await newer(2).waitFor();

  await page.keyboard.press('p');
  await page.getByRole('button', { name: 'Paused' }).waitFor();
  await post('followed.made', 1);
  await newer(1, other).waitFor();
  assert.equal(await newer(2).count(), 1, 'the reader has paused live updates');
  await page.keyboard.press('p');
  await newer(3).click();
  await has(6);
  await page.getByText('6 match').waitFor();
  await visit.check(page, 'deliveries-live');
});

journey('a row with the focus stays in a list that it has left, until the focus goes', async (visit) => {
  const { id } = await destination('/leaving', 'Leaving', { paused: true });
  await post('leaving.made', 2);
  const page = await visit.open(`/deliveries?destination=${id}&state=pending`);
  await ready(page);
  const row = page.getByRole('link', { name: 'leaving.made' }).first();
  await row.waitFor();
  await page.keyboard.press('j');
  await api('PATCH', `/v1/destinations/${id}`, { paused: false });
  await receiver.wait('/leaving', 2);
  const changed = (response) => /\/fragments\/deliveries\?/.test(response.url()) && response.status() === 200;
  await page.waitForResponse(changed);
  await page.waitForResponse(changed);
  assert.equal(await row.evaluate((element) => element === document.activeElement), true);
  await page.keyboard.press('Escape');
  await page.getByRole('heading', { name: 'No delivery matches' }).waitFor();
});

journey('events and groups of dead letters appear without a reload, and the groups are asked for seldom', async (visit) => {
  receiver.answer('/late', { status: 500 });
  await destination('/late', 'Late');
  await post('late.made', 1);
  const groups = await visit.open('/dead-letters');
  const events = await visit.open('/events');
  let asked = 0;
  groups.on('request', (request) => { asked += request.url().includes('/fragments/dead-letters') ? 1 : 0; });
  let idle = 0;
  events.on('response', (response) => { idle += response.status() === 204 ? 1 : 0; });
  await events.waitForResponse(/\/fragments\/events/);
  await post('late.made', 3);
  // Weir's own events about dead letters come at any time, and are counted too.
  await events.getByRole('link', { name: /^[3-9] new$/ }).click();
  await events.getByRole('link', { name: 'late.made' }).nth(3).waitFor();
  const group = groups.getByRole('row').filter({ hasText: 'Late' });
  await group.getByRole('cell', { name: '4', exact: true }).waitFor({ timeout: 30_000 });
  // At the first snapshot, and after ten seconds; once more on a slow machine.
  assert.ok(asked <= 3, `${asked} requests for the groups`);
  assert.ok(idle >= 1, 'a list without news is not sent again');
  await visit.check(groups, 'dead-letters-live');
});

journey('a filter is a chip in the URL, and a state is turned by a link', async (visit) => {
  const page = await visit.open('/deliveries?event_type=moody.*&error=500');
  await page.getByRole('link', { name: 'Remove the filter Error' }).click();
  await page.waitForURL(/event_type=moody\.\*$/);
  await page.getByRole('navigation', { name: 'States' }).getByRole('link', { name: 'delivered' }).click();
  await page.waitForURL(/state=delivered/);
  await page.getByText('1 match').waitFor();
});

journey('a backlog is purged after the typed confirmation, without JavaScript', async (visit) => {
  const { id } = await destination('/paused', 'Paused', { paused: true });
  await post('paused.made', 7);
  const page = await visit.open(`/destinations/${id}/purge`, { scripts: false });
  await page.getByText('7 waiting deliveries match').waitFor();
  visit.expect(422, /\/purge$/);
  await page.getByLabel('Type purge 7 to confirm').fill('purge 8');
  await page.getByRole('button', { name: 'Cancel 7 deliveries' }).click();
  await page.getByText('Nothing was cancelled').waitFor();
  await page.getByLabel('Type purge 7 to confirm').fill('purge 7');
  await page.getByRole('button', { name: 'Cancel 7 deliveries' }).click();
  await page.getByText('7 waiting deliveries are cancelled').waitFor();
});
