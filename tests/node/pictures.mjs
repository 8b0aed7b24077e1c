// The golden model that takes images: its pictures, and the answers that transformers gives to a prompt with them.

import { readFileSync } from "node:fs";

const golden = (path) => readFileSync(new URL(`../golden/${path}`, import.meta.url));

export const { cases } = JSON.parse(golden("vision_mistral3/cases.json"));

export const bytes = (picture) => new Uint8Array(golden(`vision_pictures/${picture}`));

export const dataUrl = (picture) => `data:image/png;base64,${golden(`vision_pictures/${picture}`).toString("base64")}`;
