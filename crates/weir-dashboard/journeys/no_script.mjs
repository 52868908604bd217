// A browser without JavaScript: what an operator does on a bad day, from the login to the logout.

import assert from 'node:assert/strict';

import { api, journey, logIn, post, shows } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();
const NO_SCRIPT = { as: null, scripts: false };

const destination = (name, more = {}) =>
  api('POST', '/v1/destinations', { url: receiver.url(`/${name}`), name, event_types: [`${name}.*`], ...more });
const click = (page, role, name) => page.getByRole(role, { name, exact: true }).click();
const flash = (page, text) => page.locator('.flash').filter({ hasText: text }).waitFor();

journey('log in, edit a limit and restore it, pause and resume, log out', async (visit) => {
  const { id } = await destination('limited', { rate_limits: [{ limit: 10, period: 'second' }] });
  const limit = async () => (await api('GET', `/v1/destinations/${id}`)).rate_limits[0].limit;
  const page = await visit.open('/', NO_SCRIPT);
  await logIn(page);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.getByLabel('Part of the name or URL').fill('limi');
  await click(page, 'button', 'Show');
  await click(page, 'link', 'limited');

  await page.getByLabel('Sends in any second').fill('25');
  await click(page, 'button', 'Save limits');
  await flash(page, 'Limits saved: 10/s');
  assert.equal(await limit(), 25);
  await click(page, 'button', 'Restore them');
  await flash(page, 'Limits saved: 25/s');
  assert.equal(await limit(), 10);
  await click(page, 'button', 'Pause');
  await flash(page, 'Paused.');
  await post('limited.made', 2);
  await click(page, 'button', 'Resume');
  await flash(page, 'Sending again.');
  await receiver.wait('/limited', 2);

  await click(page, 'button', 'Log out');
  await flash(page, 'You are logged out.');
  await page.goto(`/destinations/${id}`);
  await page.getByLabel('API key').waitFor();
});

journey('dead letters are replayed with a typed confirmation, and a delivery is retried', async (visit) => {
  receiver.answer('/failing', { status: 503 });
  await destination('failing', { retry: { max_attempts: 1 }, breaker: null });
  await post('failing.made', 3);
  const page = await visit.open('/', NO_SCRIPT);
  await logIn(page);
  await shows(page, '/dead-letters', '3 in 1 group');
  receiver.answer('/failing', { status: 200 });

  await click(page, 'link', 'failing');
  await page.getByText('3 match').waitFor();
  await page.getByRole('link', { name: 'failing.made' }).first().click();
  await click(page, 'button', 'Retry now');
  await flash(page, 'It is due now');
  await receiver.wait('/failing', 4);

  await shows(page, '/dead-letters', '2 in 1 group');
  await page.getByRole('link', { name: /^Replay 2 to failing/ }).click();
  visit.expect(422, /\/replays$/);
  await page.getByLabel('Type replay 2 to confirm').fill('replay');
  await click(page, 'button', 'Replay 2 deliveries');
  await page.getByText('Nothing was replayed').waitFor();
  await page.getByLabel('Type replay 2 to confirm').fill('replay 2');
  await click(page, 'button', 'Replay 2 deliveries');
  await flash(page, 'The replay has started');
  await receiver.wait('/failing', 6);
  // The page is not live, and says the same when it is opened again.
  await shows(page, new URL(page.url()).pathname, 'completed');
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Dead letters' }).click();
  await page.getByRole('heading', { name: 'No dead letters' }).waitFor();
});

journey('ticked destinations are paused, a key is made and deleted, thresholds are set', async (visit) => {
  const { id } = await destination('ticked');
  const page = await visit.open('/', NO_SCRIPT);
  await logIn(page);
  // The overview shows a sample of the last second.
  await shows(page, '/?sort=name', 'ticked');
  await page.getByLabel('Tick ticked').check();
  await click(page, 'button', 'Pause ticked');
  await flash(page, '1 destination paused');
  assert.equal((await api('GET', `/v1/destinations/${id}`)).paused, true);

  await page.goto('/keys');
  await page.getByLabel('Name').fill('plain');
  await page.getByLabel('read reads').check();
  await click(page, 'button', 'Create key');
  assert.match(await page.locator('#secret').textContent(), /^wk_/);
  await page.goto('/keys');
  const row = page.getByRole('row').filter({ hasText: 'plain' });
  await row.getByText('Delete…').click();
  await row.getByRole('checkbox').check();
  await row.getByRole('button', { name: 'Delete plain' }).click();
  await flash(page, 'The key is deleted');

  await page.goto('/alerts');
  await page.getByLabel('Waiting deliveries of a destination').fill('700');
  await click(page, 'button', 'Save');
  await flash(page, 'The thresholds are saved');
  assert.equal((await api('GET', '/v1/alerts')).backlog_depth, 700);
});
