// One destination: its secret, a test event, a request to verify, its breaker, its settings, its end.

import assert from 'node:assert/strict';

import { api, journey, post } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();

const destination = (name, more = {}) =>
  api('POST', '/v1/destinations', { url: receiver.url(`/${name}`), name, event_types: [`${name}.*`], ...more });

journey('a secret is shown when asked for, and rotated with an overlap', async (visit) => {
  const { id, secret } = await destination('secretive');
  const page = await visit.open(`/destinations/${id}/settings`);
  assert.ok(!(await page.content()).includes(secret), 'nobody has asked for it');
  await visit.check(page, 'settings');
  const shown = page.waitForResponse(/\/secret$/);
  await page.getByRole('button', { name: 'Show the secret' }).click();
  assert.match((await shown).headers()['cache-control'], /no-store/);
  assert.equal(await page.locator('#secret').textContent(), secret);
  await visit.check(page, 'secret');
  await page.getByRole('link', { name: 'Hide' }).click();
  await page.getByText('Rotate it').click();
  await page.getByLabel('The present secret also signs for').selectOption({ label: '1 hour' });
  await page.getByRole('button', { name: 'Rotate the secret' }).click();
  await page.getByText('The secret is rotated. The previous secret also signs until').waitFor();
  assert.match(page.url(), /\/settings$/);
  await page.getByRole('button', { name: 'Show the secret' }).click();
  const rotated = await page.locator('#secret').textContent();
  assert.match(rotated, /^whsec_/);
  assert.notEqual(rotated, secret);
  await page.getByRole('link', { name: 'Activity' }).last().click();
  await page.getByRole('row').filter({ hasText: 'secret' }).first().waitFor();
  assert.ok(!(await page.content()).includes(rotated), 'the activity masks secrets');
});

journey('a test event leads to its delivery, and what the receiver got is verified', async (visit) => {
  const { id } = await destination('tested');
  const page = await visit.open(`/destinations/${id}/settings`);
  await page.getByRole('button', { name: 'Send a test event' }).click();
  await page.getByRole('heading', { name: 'weir.test' }).waitFor();
  await receiver.wait('/tested', 1);
  const [{ headers, body }] = receiver.arrivals('/tested');
  await page.goto(`/destinations/${id}/settings`);
  const verify = async (pasted) => {
    await page.getByLabel('Headers of a request').fill(Object.entries(headers).map((pair) => pair.join(': ')).join('\n'));
    await page.getByLabel('Its body').fill(pasted);
    await page.getByRole('button', { name: 'Verify' }).click();
  };
  await verify(body);
  await page.getByText('It was signed with the secret of this destination').waitFor();
  await visit.check(page, 'verified');
  await verify(`${body} `);
  await page.getByText('Not valid').waitFor();
});

journey('an open breaker counts down to its probe, and can be closed', async (visit) => {
  receiver.answer('/down', { status: 503 });
  const { id } = await destination('down', {
    breaker: { consecutive: 2, open_ms: 600_000 }, retry: { max_attempts: 9, base_ms: 100 },
  });
  const page = await visit.open(`/destinations/${id}`);
  await post('down.made', 5);
  const banner = page.getByRole('status').filter({ hasText: 'The breaker is open' });
  await banner.getByText('2 attempts in a row failed').or(banner).first().waitFor();
  const countdown = banner.locator('time[data-form=countdown]');
  const before = await countdown.textContent();
  assert.match(before, /^in \d+ min/);
  await page.waitForFunction(
    (text) => document.querySelector('#now .banner time').textContent !== text, before);
  await visit.check(page, 'breaker');
  receiver.answer('/down', { status: 200 });
  await banner.getByRole('button', { name: 'Close it now' }).click();
  await receiver.wait('/down', 7);
  await banner.waitFor({ state: 'detached' });
});

journey('settings are saved, a late edit is explained, and a destination ends with its typed name', async (visit) => {
  const { id } = await destination('renamed');
  const page = await visit.open(`/destinations/${id}/settings`);
  await page.getByLabel('Name', { exact: true }).fill('Partner & sons');
  await page.getByRole('button', { name: 'Save settings' }).click();
  await page.getByText('Settings saved').waitFor();
  await page.getByRole('heading', { name: 'Partner & sons' }).waitFor();
  await api('PATCH', `/v1/destinations/${id}`, { event_types: ['other.*'] });
  visit.expect(412, /\/settings$/);
  await page.getByLabel('Name', { exact: true }).fill('Mine');
  await page.getByRole('button', { name: 'Save settings' }).click();
  await page.getByText('somebody else changed this destination').waitFor();
  assert.equal(await page.getByLabel('Name', { exact: true }).inputValue(), 'Mine');
  await page.goto(`/destinations/${id}/settings`);
  await page.getByText('Delete this destination').click();
  const end = page.getByRole('button', { name: 'Delete', exact: true });
  assert.equal(await end.isDisabled(), true);
  await page.getByLabel('Type Partner & sons to confirm').fill('Partner & sons');
  await end.click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'Partner & sons' }).count(), 0);
});

journey('a destination is paused and resumed on its page, which says that its backlog is stopped', async (visit) => {
  const { id } = await destination('resting');
  const page = await visit.open(`/destinations/${id}`);
  await page.getByRole('button', { name: 'Pause', exact: true }).click();
  await page.locator('#now').getByText('Paused.').waitFor();
  await post('resting.made', 4);
  await page.goto(`/destinations/${id}/backlog`);
  await page.getByRole('row').filter({ hasText: 'resting.made' }).nth(3).waitFor();
  await visit.check(page, 'backlog');
  await page.getByRole('link', { name: 'Now' }).click();
  await page.getByRole('button', { name: 'Resume' }).click();
  await receiver.wait('/resting', 4);
});
