// The keyboard alone: no step of these journeys uses a mouse, and whatever has the focus shows it.

import assert from 'node:assert/strict';

import { api, journey, key, post, ready } from './browser.mjs';
import { receive } from './receiver.mjs';

/** More steps than any page has. A field for a time takes several. */
const MOST_STEPS = 100;

const receiver = await receive();
const destination = (name) =>
  api('POST', '/v1/destinations', {
    url: receiver.url(`/${name}`), name, event_types: [`${name}.*`], rate_limits: [{ limit: 5, period: 'second' }],
  });
for (const name of ['alpha', 'beta', 'gamma']) await destination(name);

const isFocused = (target) => target.evaluate((element) => element === document.activeElement);

/** What has the focus has the outline of the focus. */
async function assertShown(page) {
  const { what, style, width, color } = await page.evaluate(() => {
    const element = document.activeElement;
    const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(element);
    return { what: element.outerHTML.slice(0, 120), style: outlineStyle, width: outlineWidth, color: outlineColor };
  });
  // After the last element the focus is at the window, and then at the first one again.
  if (what.startsWith('<body')) return;
  const isVisible = style !== 'none' && Number.parseFloat(width) >= 2 && !/, 0\)$|transparent/.test(color);
  assert.ok(isVisible, `the focus does not show (${style} ${width} ${color}): ${what}`);
}

/** Presses Tab until the focus is there. */
async function tabTo(page, target) {
  for (let step = 0; step < MOST_STEPS; step += 1) {
    if (await isFocused(target)) return;
    await page.keyboard.press('Tab');
    await assertShown(page);
  }
  assert.fail(`Tab does not lead to ${target} on ${page.url()}`);
}

/** Leads the focus to a link or button and presses it. */
async function activate(page, target) {
  await tabTo(page, target);
  await page.keyboard.press('Enter');
}

journey('from the login to a saved limit, a pause, a purge and the logout', async (visit) => {
  const page = await visit.open('/', { as: null });
  const field = page.getByLabel('API key');
  await field.waitFor();
  assert.equal(await isFocused(field), true, 'the login is ready to be typed into');
  await assertShown(page);
  await page.keyboard.type(key);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await ready(page);

  await page.keyboard.press('/');
  assert.equal(await isFocused(page.locator('#jump')), true);
  await assertShown(page);
  // A part of the name finds the rows; the whole name would open the only destination that has it.
  await page.keyboard.type('bet');
  await page.keyboard.press('Enter');
  await page.waitForURL(/q=bet/);
  await ready(page);
  await page.keyboard.press('j');
  assert.equal(await isFocused(page.getByRole('link', { name: 'beta', exact: true })), true);
  await assertShown(page);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'beta' }).waitFor();
  await ready(page);

  // Tab selects what is in a field, and so a digit replaces it.
  await tabTo(page, page.getByLabel('Sends in any second'));
  await page.keyboard.type('20');
  await page.locator('#preview').getByRole('row', { name: 'Bound by' }).getByText('20/s').waitFor();
  await page.keyboard.press('Enter');
  await page.getByText('Limits saved: 5/s').waitFor();
  await ready(page);

  await activate(page, page.getByRole('button', { name: 'Pause', exact: true }));
  // The page that was left may show the banner too; the message is only on the next one.
  await page.locator('.flash').filter({ hasText: 'Paused.' }).waitFor();
  await post('beta.made', 3);
  await ready(page);

  await activate(page, page.getByRole('navigation', { name: 'Destination' }).getByRole('link', { name: 'Backlog' }));
  await page.waitForURL(/\/backlog$/);
  await page.getByRole('row').filter({ hasText: 'beta.made' }).nth(2).waitFor();
  await activate(page, page.getByRole('link', { name: 'Purge' }));
  await page.getByText('3 waiting deliveries match').waitFor();
  await ready(page);
  await tabTo(page, page.getByLabel('Type purge 3 to confirm'));
  await page.keyboard.type('purge');
  await page.keyboard.press('Enter');
  const purge = page.getByRole('button', { name: 'Cancel 3 deliveries' });
  assert.equal(await purge.isDisabled(), true, 'it is not yet confirmed');
  await page.keyboard.type(' 3');
  await page.keyboard.press('Enter');
  await page.getByText('3 waiting deliveries are cancelled').waitFor();
  await ready(page);

  await activate(page, page.getByRole('button', { name: 'Log out' }));
  await field.waitFor();
});

journey('j and k walk through the rows, and Enter opens one', async (visit) => {
  const page = await visit.open('/?sort=name');
  await ready(page);
  const walked = [];
  for (const pressed of ['j', 'j', 'j', 'k', 'j', 'j', 'k']) {
    await page.keyboard.press(pressed);
    await assertShown(page);
    walked.push(await page.evaluate(() => document.activeElement.textContent));
  }
  // At the end there is no further row.
  assert.deepEqual(walked, ['alpha', 'beta', 'gamma', 'beta', 'gamma', 'gamma', 'beta']);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'beta' }).waitFor();
});

journey('the list of keys opens over the page, holds the focus, and gives it back', async (visit) => {
  const page = await visit.open('/');
  await ready(page);
  await page.keyboard.press('j');
  const row = await page.evaluateHandle(() => document.activeElement);
  await page.keyboard.press('?');
  const list = page.getByRole('dialog', { name: 'Keyboard' });
  await list.getByText('Next or previous row').waitFor();
  assert.equal(await isFocused(list.getByRole('button', { name: 'Close' })), true);
  await assertShown(page);
  await page.keyboard.press('Escape');
  await list.waitFor({ state: 'hidden' });
  assert.equal(await row.evaluate((element) => element === document.activeElement), true, 'the focus is where it was');
  await page.keyboard.press('?');
  await list.waitFor();
  await page.keyboard.press('Enter');
  await list.waitFor({ state: 'hidden' });
  assert.equal(await row.evaluate((element) => element === document.activeElement), true);
});

journey('g and a letter open every part, but not while somebody types', async (visit) => {
  const page = await visit.open('/status');
  const links = page.locator('nav.side a[data-key]');
  const parts = await links.evaluateAll((all) => all.map((link) => [link.dataset.key, link.href]));
  assert.equal(parts.length, 12);
  for (const [letter, address] of parts) {
    await ready(page);
    await page.keyboard.press('g');
    await page.keyboard.press(letter);
    await page.waitForURL(address);
    assert.equal(await page.locator('nav.side a[aria-current=page]').getAttribute('data-key'), letter);
  }
  await ready(page);
  const at = page.url();
  await page.keyboard.press('/');
  await page.keyboard.type('gd?pu');
  assert.equal(await page.locator('#jump').inputValue(), 'gd?pu');
  assert.equal(page.url(), at);
  assert.equal(await page.getByRole('dialog').count(), 0);
});
