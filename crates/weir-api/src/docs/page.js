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
    if (schema.enum) notes.push('one of ' + schema.enum.join(', '));
    return notes.length ? [' ', make('span', { class: 'note' }, notes.join(', '))] : [];
  };

  const table = (caption, heads, rows) => make('table', {},
    make('caption', {}, caption),
    make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', { scope: 'col' }, head)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell) => make('td', {}, ...[].concat(cell)))))));

  // The description of a nullable reference stands beside the reference.
  const said = (schema) => schema.description || (schema.oneOf || []).map((one) => one.description).find(Boolean);
  const named = (field, required) => [make('code', {}, field), ...(required ? [' ', make('span', { class: 'required' }, 'required')] : [])];

  let schemas = {};
  // The schema to which the text of a nullable or single reference leads.
  const target = (schema) => {
    const reference = (schema && schema.$ref) || ((schema && schema.oneOf) || []).map((one) => one.$ref).find(Boolean);
    return reference ? schemas[name(reference)] : schema;
  };

  // Required fields first; otherwise as in the document.
  const fields = (schema) => {
    // A schema may be composed of parts; their fields are its own.
    const parts = schema.properties ? [schema] : (schema.allOf || []).map(target).filter(Boolean);
    const all = parts.flatMap((part) => (part.properties ? Object.entries(part.properties).map(([field, value]) =>
      ({ field, value, required: (part.required || []).includes(field) })) : fields(part)));
    return all.sort((one, other) => other.required - one.required);
  };
  // What a field says, or else the text to which it refers.
  const fieldRows = (schema) => fields(schema).map(({ field, value, required }) => {
    const text = target(value);
    const own = said(value) || (text && !text.properties && !text.allOf && text.description);
    return [named(field, required), type(value), [...words(own), ...bounds(value), ...(text !== value && text?.enum ? bounds({ enum: text.enum }) : [])]];
  });

  const sample = (text) => {
    const button = make('button', { type: 'button' }, 'Copy');
    button.addEventListener('click', async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = 'Copied';
      } catch {
        button.textContent = 'Select it by hand';
      }
      setTimeout(() => { button.textContent = 'Copy'; }, 2000);
    });
    return make('div', { class: 'sample' }, make('pre', { tabindex: '0' }, text), button);
  };
  const shown = (example) => (typeof example === 'string' ? example : JSON.stringify(example, null, 2));

  // A command for a shell. A single quote in a text of the shell ends it, so it stands outside.
  const quoted = (text) => `'${text.replace(/'/g, `'\\''`)}'`;
  const exampleOf = (one) => one.example ?? one.schema?.example ?? target(one.schema)?.example;
  const curl = (path, method, item, body) => {
    const filled = path.replace(/\{(\w+)\}/g, (whole, part) => {
      const parameter = (item.parameters || []).find((one) => one.in === 'path' && one.name === part);
      const example = parameter && exampleOf(parameter);
      return example === undefined ? whole : encodeURIComponent(example);
    });
    const lines = [`curl -s ${method === 'get' ? '' : `-X ${method.toUpperCase()} `}${quoted(location.origin + filled)}`];
    if ((item.security || []).some((one) => 'api_key' in one)) lines.push('-H "Authorization: Bearer $WEIR_API_KEY"');
    if (body) lines.push("-H 'content-type: application/json'", `-d ${quoted(JSON.stringify(body.example))}`);
    return lines.join(' \\\n  ');
  };

  const operation = (path, method, item) => {
    const section = make('section', { id: slug(`${method}-${path}`) },
      make('h3', {}, make('span', { class: 'method' }, method.toUpperCase()), ' ', make('code', {}, path)),
      make('p', {}, make('strong', {}, item.summary || '')), ...paragraphs(item.description));
    const required = [...(item.parameters || [])].sort((one, other) => Boolean(other.required) - Boolean(one.required));
    if (required.length) section.append(table('Parameters', ['Name', 'In', 'Type', 'Description'], required.map((one) =>
      [named(one.name, one.required), [one.in], type(one.schema), [...words(one.description), ...bounds(one.schema || {})]])));
    const body = item.requestBody && Object.values(item.requestBody.content)[0];
    if (body) {
      section.append(make('h4', {}, 'Body: ', ...type(body.schema)));
      const rows = fieldRows(target(body.schema) || {});
      if (rows.length) section.append(make('details', {}, make('summary', {}, `Fields of the body (${rows.length})`), table('Fields', ['Name', 'Type', 'Description'], rows)));
    }
    section.append(make('h4', {}, 'Request'), sample(curl(path, method, item, body)));
    const examples = [];
    section.append(table('Responses', ['Status', 'Meaning', 'Body'], Object.entries(item.responses).map(([status, response]) => {
      if (response.$ref) {
        const problem = name(response.$ref);
        return [[status], [make('a', { href: '#problem-' + kebab(problem) }, problem)], ['Problem']];
      }
      const content = Object.values(response.content || {})[0];
      if (content && content.example !== undefined) examples.push([status, content.example]);
      return [[status], words(response.description), content ? type(content.schema) : ['—']];
    })));
    for (const [status, example] of examples) {
      section.append(make('details', {}, make('summary', {}, `Example of the answer ${status}`), sample(shown(example))));
    }
    return section;
  };

  const group = (title, id, entries) => contents.append(make('div', {}, make('h2', {}, make('a', { href: '#' + id }, title)),
    make('ul', {}, ...entries.map(([text, target]) => make('li', {}, make('a', { href: '#' + target }, text))))));

  // Shows the sections that contain every word, and their links.
  const search = (text) => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const section of main.querySelectorAll('section')) {
      section.hidden = !wanted.every((word) => section.searched.includes(word));
      found += section.hidden ? 0 : 1;
    }
    document.getElementById('introduction').hidden = wanted.length > 0;
    for (const part of main.querySelectorAll('.part')) part.hidden = !part.querySelector('section:not([hidden])');
    for (const link of contents.querySelectorAll('li')) {
      const section = document.getElementById(link.firstChild.getAttribute('href').slice(1));
      link.hidden = Boolean(section && section.hidden);
    }
    for (const part of contents.children) part.hidden = ![...part.querySelectorAll('li')].some((link) => !link.hidden);
    document.getElementById('found').value = wanted.length ? `${found} found` : '';
  };

  const render = (api) => {
    schemas = api.components.schemas;
    document.getElementById('state').replaceWith(make('div', { id: 'introduction' }, ...paragraphs(api.info.description),
      make('p', {}, `Version ${api.info.version} · `, make('a', { href: 'openapi.json' }, 'openapi.json'))));
    const begin = (title, description) => {
      const part = make('div', { class: 'part' }, make('h2', { id: slug(title) }, title), ...paragraphs(description));
      main.append(part);
      return part;
    };
    for (const tag of api.tags) {
      const part = begin(tag.name, tag.description);
      const entries = [];
      for (const [path, item] of Object.entries(api.paths)) {
        for (const [method, one] of Object.entries(item)) {
          if (!(one.tags || []).includes(tag.name)) continue;
          part.append(operation(path, method, one));
          entries.push([`${method.toUpperCase()} ${path}`, slug(`${method}-${path}`)]);
        }
      }
      group(tag.name, slug(tag.name), entries);
    }
    const problemPart = begin('problems', 'Why a request is refused. The `type` of a problem links here.');
    const problems = Object.entries(api.components.responses);
    for (const [title, response] of problems) {
      const example = Object.values(response.content || {})[0]?.example;
      problemPart.append(make('section', { id: 'problem-' + kebab(title) }, make('h3', {}, title), make('p', {}, response.description),
        example ? sample(shown(example)) : null));
    }
    group('problems', 'problems', problems.map(([title]) => [title, 'problem-' + kebab(title)]));
    const schemaPart = begin('schemas', '');
    for (const [title, schema] of Object.entries(schemas)) {
      const rows = fieldRows(schema);
      const section = make('section', { id: 'schema-' + slug(title) }, make('h3', {}, title), ...paragraphs(schema.description));
      section.append(rows.length ? table('Fields', ['Name', 'Type', 'Description'], rows) : make('p', {}, ...type(schema), ...bounds(schema)));
      if (schema['x-weir-rules']) {
        section.append(make('details', {}, make('summary', {}, 'Rules between fields, as JSON Schema'), sample(shown(schema['x-weir-rules']))));
      }
      schemaPart.append(section);
    }
    group('schemas', 'schemas', Object.keys(schemas).map((title) => [title, 'schema-' + slug(title)]));
    for (const section of main.querySelectorAll('section')) section.searched = section.textContent.toLowerCase();
    document.getElementById('search').addEventListener('input', (event) => search(event.target.value));
    // On a wide page the contents stand beside the text.
    const wide = matchMedia('(min-width: 56.01rem)');
    const unfold = () => { document.getElementById('menu').open = wide.matches; };
    wide.addEventListener('change', unfold);
    unfold();
    contents.addEventListener('click', (event) => { if (event.target.closest('a') && !wide.matches) document.getElementById('menu').open = false; });
    // The section that the fragment of the address names did not exist when the page was opened.
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  };

  fetch('openapi.json').then((answer) => answer.json()).then(render).catch((error) => {
    document.getElementById('state')?.replaceChildren(`Could not load /openapi.json: ${error}`);
  });
})();
