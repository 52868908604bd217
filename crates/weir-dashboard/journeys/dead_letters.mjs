// From what failed to its replay: deliveries, dead letters, retry, replay, cancellation, events.

import assert from 'node:assert/strict';

import { api, journey, post, shows } from './browser.mjs';
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
  await page.getByLabel('Type purge 7 to confirm').fill('purge 8');
  await page.getByRole('button', { name: 'Cancel 7 deliveries' }).click();
  await page.getByText('Nothing was cancelled').waitFor();
  await page.getByLabel('Type purge 7 to confirm').fill('purge 7');
  await page.getByRole('button', { name: 'Cancel 7 deliveries' }).click();
  await page.getByText('7 waiting deliveries are cancelled').waitFor();
});
