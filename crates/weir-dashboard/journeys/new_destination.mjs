// A new destination in the browser: its form, what is wrong beside each field, the first steps; and a new replay.

import assert from 'node:assert/strict';

import { api, journey, shows } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();
receiver.answer('/first', { status: 200, text: 'thank you' });

journey('a destination is created, tested and gets its first event, all in the browser', async (visit) => {
  const page = await visit.open('/');
  await page.getByRole('link', { name: 'New destination' }).click();
  await visit.check(page, 'new-destination');
  await page.getByLabel('URL', { exact: true }).fill(receiver.url('/first'));
  await page.getByLabel('Name', { exact: false }).first().fill('First');
  await page.getByLabel('Event types').fill('first.*');
  await page.getByLabel('Most sends in any second').fill('10');
  await page.getByRole('button', { name: 'Create destination' }).click();
  await page.getByRole('heading', { name: 'First is ready' }).waitFor();
  const secret = await page.locator('#secret').textContent();
  assert.match(secret, /^whsec_/);
  await page.getByRole('button', { name: 'Send a test event' }).click();
  await page.getByText(/The receiver answered 200 in/).waitFor();
  await page.getByText('thank you').waitFor();
  assert.equal(await page.locator('#secret').textContent(), secret, 'the secret is still there');
  await visit.check(page, 'first-steps');
  const [, type] = (await page.locator('#curl').textContent()).match(/"type":"([^"]+)"/);
  assert.equal(type, 'first.created');
  await api('POST', '/v1/events', { type, data: { id: 7 } });
  await receiver.wait('/first', 2);

  await page.getByRole('link', { name: 'Open its page' }).click();
  await page.getByRole('heading', { name: 'First' }).waitFor();
  assert.equal(await page.getByText(secret).count(), 0);
  const id = page.url().split('/').pop();
  const { rate_limits: limits, secret: shown } = { ...(await api('GET', `/v1/destinations/${id}`)), ...(await api('GET', `/v1/destinations/${id}/secret`)) };
  assert.deepEqual([limits[0].limit, limits[0].period, shown], [10, 'second', secret]);
});

journey('what is wrong stands beside its field, and what was typed stays', async (visit) => {
  visit.expect(422, /\/destinations$/);
  const page = await visit.open('/destinations/new');
  await page.getByLabel('URL', { exact: true }).fill('ftp://example.com/');
  await page.getByLabel('Event types').fill('a b');
  await page.getByLabel('Most sends in any hour').fill('many');
  await page.getByRole('button', { name: 'Create destination' }).click();
  await page.getByRole('alert').getByRole('link', { name: 'Most sends in any hour' }).waitFor();
  await page.getByText('Must be an http or https URL, not ftp:.').waitFor();
  await page.getByText('Must be a whole number from 1 to 1,000,000.').waitFor();
  assert.equal(await page.getByLabel('Most sends in any hour').inputValue(), 'many');
  assert.ok(!(await page.locator('main').textContent()).includes('`'));
  await visit.check(page, 'new-destination-refused');
});

journey('without a script the first steps are the same, and the test event opens its delivery', async (visit) => {
  const page = await visit.open('/destinations/new', { scripts: false });
  await page.getByLabel('URL', { exact: true }).fill(receiver.url('/plain'));
  await page.getByLabel('Event types').fill('plain.*');
  await page.getByRole('button', { name: 'Create destination' }).click();
  assert.match(await page.locator('#secret').textContent(), /^whsec_/);
  const opened = page.context().waitForEvent('page');
  await page.getByRole('button', { name: 'Send a test event' }).click();
  const delivery = await opened;
  await delivery.getByRole('heading', { name: 'weir.test' }).waitFor();
  assert.match(await page.locator('#secret').textContent(), /^whsec_/, 'the secret is still in its window');
  await receiver.wait('/plain', 1);
});

journey('a replay is chosen, counted and started on its pages', async (visit) => {
  receiver.answer('/again', { status: 500 });
  await api('POST', '/v1/destinations', {
    url: receiver.url('/again'), name: 'Again', event_types: ['again.*'], retry: { max_attempts: 1 }, breaker: null,
  });
  for (const n of [1, 2]) await api('POST', '/v1/events', { type: 'again.made', data: n });
  const page = await visit.open('/replays');
  await shows(page, '/dead-letters', '2 in 1 group');
  receiver.answer('/again', { status: 200 });
  await page.goto('/replays');
  await page.getByRole('link', { name: 'New replay' }).first().click();
  await visit.check(page, 'new-replay');
  await page.getByRole('textbox', { name: 'Destination' }).fill('Nobody');
  visit.expect(422, /replays\/new/);
  await page.getByRole('button', { name: 'Count them' }).click();
  await page.getByText('No destination has “Nobody” in its name or URL.').waitFor();
  await page.getByRole('textbox', { name: 'Destination' }).fill('Again');
  await page.getByLabel('Time').selectOption('24 h');
  await page.getByRole('button', { name: 'Count them' }).click();
  await page.getByText('2 deliveries match').waitFor();
  await visit.check(page, 'replay-plan');
  await page.getByLabel(/to confirm/).fill('replay 2');
  await page.getByRole('button', { name: 'Replay 2 deliveries' }).click();
  await receiver.wait('/again', 4);
});
