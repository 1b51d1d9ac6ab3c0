// Makes elements of the page. Every text becomes textContent, so none is read as markup.

// Returns an element with these attributes and children. A child that is a text stays a text.
export function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined)
    .map((child) => child instanceof Node ? child : String(child)));
  return element;
}
