// Alerts: thresholds that the reader sets, wrong ones that are explained, and an alert that fires and clears.

import assert from 'node:assert/strict';

import { api, journey, post } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();

const depth = (page) => page.getByLabel('Waiting deliveries of a destination');
const save = (page) => page.getByRole('button', { name: 'Save' }).click();
/** Live updates ask for alerts and dead letters every ten seconds, and Weir looks for alerts every two. */
const SOON = { timeout: 30_000 };
const saved = async () => (await api('GET', '/v1/alerts')).backlog_depth;

journey('a backlog above the threshold raises an alert, which is shown, delivered and cleared', async (visit) => {
  await api('POST', '/v1/destinations', { url: receiver.url('/operator'), name: 'Operator', event_types: ['weir.*'] });
  const { id } = await api('POST', '/v1/destinations', {
    url: receiver.url('/deep'), name: 'Deep', event_types: ['deep.*'], paused: true,
  });
  const page = await visit.open('/alerts');
  await depth(page).fill('5');
  await save(page);
  await page.getByText('The thresholds are saved').waitFor();
  assert.equal(await depth(page).inputValue(), '5');
  await page.getByRole('heading', { name: 'No alerts yet' }).waitFor();
  await visit.check(page, 'alerts-set');
  await depth(page).fill('7');
  await post('deep.made', 6);
  await receiver.wait('/operator', 1);

  // It appears below the hands of a reader who types.
  const alert = page.getByRole('row').filter({ hasText: 'Backlog high' });
  await alert.waitFor(SOON);
  await alert.getByText('6 deliveries wait (the threshold is 5).').waitFor();
  assert.equal(await alert.getByRole('link', { name: 'Deep' }).getAttribute('href'), `/destinations/${id}`);
  assert.equal(await depth(page).inputValue(), '7');
  await depth(page).blur();
  await visit.check(page, 'alerts-recent');
  await page.keyboard.press('j');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'weir.backlog.high' }).waitFor();
  const body = page.getByLabel('The body, indented');
  await body.getByText(`"destination_id": "${id}"`).waitFor();
  await body.getByText('"backlog_depth"').first().waitFor();
  await page.getByRole('row').filter({ hasText: 'Operator' }).waitFor();
  await visit.check(page, 'alert');

  await api('PATCH', `/v1/destinations/${id}`, { paused: false });
  await receiver.wait('/operator', 2);
  const types = receiver.arrivals('/operator').map((arrival) => JSON.parse(arrival.body).type);
  assert.deepEqual(types, ['weir.backlog.high', 'weir.backlog.cleared']);
  await page.goto('/events');
  await page.getByRole('link', { name: 'weir.backlog.cleared' }).waitFor();
  await page.goto('/activity');
  const change = page.getByRole('row').filter({ hasText: 'alerts changed' });
  await change.getByText('Waiting deliveries').waitFor();
});

journey('a wrong threshold is explained in words, and nothing is saved', async (visit) => {
  visit.expect(422, /\/alerts$/);
  const page = await visit.open('/alerts');
  await depth(page).fill('50');
  await save(page);
  await page.getByText('The thresholds are saved').waitFor();
  // A browser that does not check numbers.
  const form = page.locator('main form');
  const withoutChecks = () => form.evaluate((element) => { element.noValidate = true; });
  for (const wrong of ['0', '-1', '1.5', '2000000000']) {
    await withoutChecks();
    await depth(page).fill(wrong);
    await save(page);
    const notice = page.getByRole('alert');
    await notice.getByRole('link', { name: 'Waiting deliveries of a destination' }).waitFor();
    await page.getByText('Must be a whole number from 1 to 1,000,000,000.').waitFor();
    assert.equal(await depth(page).inputValue(), wrong, 'what was typed stays');
    assert.equal(await saved(), 50, `${wrong} is not saved`);
    // Away from the page with this message, so that the next one is new.
    await page.goto('/alerts');
    assert.equal(await notice.count(), 0);
  }
  // With the browser's own checks the form is not even sent.
  await depth(page).fill('0');
  await save(page);
  assert.equal(await depth(page).evaluate((input) => input.validity.rangeUnderflow), true);
  assert.equal(await saved(), 50);
});

journey('a key that is not an admin sees the thresholds and cannot change them', async (visit) => {
  const { secret } = await api('POST', '/v1/keys', { name: 'operator', role: 'operate' });
  const page = await visit.open('/alerts', { as: secret });
  await page.getByText('Only a key with the role admin can change them').waitFor();
  assert.equal(await depth(page).isDisabled(), true);
  assert.equal(await page.getByRole('button', { name: 'Save' }).count(), 0);
  await visit.check(page, 'alerts-read');
});
