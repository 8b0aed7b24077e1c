// Images of a message: dropped, pasted or chosen. They stay in the page, as `data:` URLs.

const IMAGE_TYPES = new Set(['image/png', 'image/jpeg', 'image/webp', 'image/gif']);
const MAX_IMAGE_BYTES = 20 << 20;

class DraftImages {
  constructor() {
    this.urls = [];
    this.isOffered = false;
    byId('attach').addEventListener('click', () => byId('image-file').click());
    byId('image-file').addEventListener('change', (event) => {
      this.add(event.target.files);
      event.target.value = '';
    });
    byId('message').addEventListener('paste', (event) => this.#take(event, event.clipboardData));
    const composer = byId('composer');
    // Files that are dropped beside the composer would otherwise replace the page.
    addEventListener('dragover', (event) => {
      if (!event.dataTransfer?.types.includes('Files')) return;
      event.preventDefault();
      composer.classList.toggle('drop', this.isOffered);
    });
    addEventListener('dragleave', () => composer.classList.remove('drop'));
    addEventListener('drop', (event) => {
      composer.classList.remove('drop');
      this.#take(event, event.dataTransfer);
    });
  }

  /** Offers images if the model takes them. */
  offer(isOffered) {
    this.isOffered = isOffered;
    byId('attach').hidden = !isOffered;
    if (!isOffered) this.clear();
  }

  #take(event, data) {
    const files = [...(data?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    this.add(files);
  }

  async add(files) {
    for (const file of files) {
      if (!this.isOffered) return notify('This model takes no images.', { isError: true });
      if (!IMAGE_TYPES.has(file.type)) notify(`${file.name} is no PNG, JPEG, WebP or GIF image.`, { isError: true });
      else if (file.size > MAX_IMAGE_BYTES) notify(`${file.name} has more than 20 MiB.`, { isError: true });
      else this.urls.push(await dataUrl(file));
    }
    this.draw();
  }

  clear() {
    this.urls = [];
    this.draw();
  }

  draw() {
    byId('draft-images').replaceChildren(...this.urls.map((url, i) => element('li', {},
      element('img', { src: url, alt: `Image ${i + 1}` }),
      button('Remove', () => { this.urls.splice(i, 1); this.draw(); }, { class: 'quiet', 'aria-label': `Remove image ${i + 1}` }))));
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
