// Renders /openapi.json. Texts are inserted as text nodes only, never as markup.
'use strict';
(() => {
  const main = document.getElementById('main');
  const contents = document.getElementById('contents');

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };

  // Descriptions use a small part of Markdown: `code` and blank lines.
  const words = (text) => (text || '').split('`').map((part, index) => (index % 2 ? make('code', {}, part) : part));
  const paragraphs = (text) => (text || '').split(/\n\s*\n/).filter(Boolean).map((part) => make('p', {}, ...words(part)));

  const slug = (text) => text.replace(/[^A-Za-z0-9]+/g, '-').replace(/^-|-$/g, '');
  const kebab = (text) => text.replace(/([a-z])([A-Z])/g, '$1-$2').toLowerCase();
  const name = (reference) => reference.split('/').pop();

  const type = (schema) => {
    if (!schema) return ['anything'];
    if (schema.$ref) return [make('a', { href: '#schema-' + slug(name(schema.$ref)) }, name(schema.$ref))];
    const several = schema.oneOf || schema.anyOf;
    if (several) return several.flatMap((one, index) => (index ? [' or ', ...type(one)] : type(one)));
    if (schema.allOf) return schema.allOf.flatMap((one, index) => (index ? [' and ', ...type(one)] : type(one)));
    const kinds = [].concat(schema.type || 'anything').join(' or ');
    if (schema.items) return ['array of ', ...type(schema.items)];
    return [schema.format ? `${kinds} (${schema.format})` : kinds];
  };

  const bounds = (schema) => {
    const notes = [];
    const note = (field, text) => { if (schema[field] !== undefined) notes.push(text + JSON.stringify(schema[field])); };
    note('default', 'default '); note('minimum', 'from '); note('maximum', 'to '); note('maxLength', 'length up to ');
    note('minItems', 'at least '); note('maxItems', 'at most '); note('pattern', 'pattern ');
    return notes.join(', ');
  };

  const table = (caption, heads, rows) => make('div', { class: 'scroll' }, make('table', {},
    make('caption', {}, caption),
    make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', { scope: 'col' }, head)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell) => make('td', {}, ...[].concat(cell))))))));

  // The description of a nullable reference stands beside the reference.
  const said = (schema) => schema.description || (schema.oneOf || []).map((one) => one.description).find(Boolean);

  const fields = (schema) => {
    // Beside its own properties a schema may have rules in `allOf`, which are no fields.
    const own = schema.properties ? [schema] : (schema.allOf || []).filter((part) => part.properties);
    return own.flatMap((part) => Object.entries(part.properties).map(([field, value]) => [
      [make('code', {}, field), (part.required || []).includes(field) ? ' required' : ''],
      type(value),
      [...words(said(value)), ' ', bounds(value)],
    ]));
  };

  const operation = (path, method, item) => {
    const section = make('section', { id: slug(`${method}-${path}`) },
      make('h3', {}, make('span', { class: 'method' }, method.toUpperCase()), ' ', make('code', {}, path)),
      make('p', {}, make('strong', {}, item.summary || '')), ...paragraphs(item.description));
    const roles = (item.security || []).flatMap((one) => Object.values(one).flat());
    if (roles.length) section.append(make('p', {}, 'Needs a key with the role ', make('code', {}, roles[0]), '.'));
    const parameters = (item.parameters || []).map((one) => [
      [make('code', {}, one.name), one.required ? ' required' : ''], [one.in], type(one.schema), [...words(one.description), ' ', bounds(one.schema || {})]]);
    if (parameters.length) section.append(table('Parameters', ['Name', 'In', 'Type', ''], parameters));
    const body = item.requestBody && Object.values(item.requestBody.content)[0];
    if (body) section.append(make('p', {}, 'Body: ', ...type(body.schema)));
    section.append(table('Responses', ['Status', 'Meaning', 'Body'], Object.entries(item.responses).map(([status, response]) => {
      if (response.$ref) {
        const problem = name(response.$ref);
        return [[status], [make('a', { href: '#problem-' + kebab(problem) }, problem)], ['Problem']];
      }
      const content = Object.values(response.content || {})[0];
      return [[status], words(response.description), content ? type(content.schema) : ['—']];
    })));
    return section;
  };

  const group = (title, id, entries) => contents.append(make('h2', {}, make('a', { href: '#' + id }, title)),
    make('ul', {}, ...entries.map(([text, target]) => make('li', {}, make('a', { href: '#' + target }, text)))));

  const render = (api) => {
    document.getElementById('state').replaceWith(...paragraphs(api.info.description),
      make('p', {}, `Version ${api.info.version} · `, make('a', { href: 'openapi.json' }, 'openapi.json')));
    for (const tag of api.tags) {
      main.append(make('h2', { id: slug(tag.name) }, tag.name), ...paragraphs(tag.description));
      const entries = [];
      for (const [path, item] of Object.entries(api.paths)) {
        for (const [method, one] of Object.entries(item)) {
          if (!(one.tags || []).includes(tag.name)) continue;
          main.append(operation(path, method, one));
          entries.push([`${method.toUpperCase()} ${path}`, slug(`${method}-${path}`)]);
        }
      }
      group(tag.name, slug(tag.name), entries);
    }
    main.append(make('h2', { id: 'problems' }, 'problems'));
    const problems = Object.entries(api.components.responses);
    for (const [title, response] of problems) {
      main.append(make('section', { id: 'problem-' + kebab(title) }, make('h3', {}, title), make('p', {}, response.description)));
    }
    group('problems', 'problems', problems.map(([title]) => [title, 'problem-' + kebab(title)]));
    main.append(make('h2', { id: 'schemas' }, 'schemas'));
    const schemas = Object.entries(api.components.schemas);
    for (const [title, schema] of schemas) {
      main.append(make('section', { id: 'schema-' + slug(title) }, make('h3', {}, title), ...paragraphs(schema.description),
        table('Fields', ['Name', 'Type', ''], fields(schema))));
    }
    group('schemas', 'schemas', schemas.map(([title]) => [title, 'schema-' + slug(title)]));
    // The section that the fragment of the address names did not exist when the page was opened.
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  };

  fetch('openapi.json').then((answer) => answer.json()).then(render).catch((error) => {
    document.getElementById('state')?.replaceChildren(`Could not load /openapi.json: ${error}`);
  });
})();
