// The pictures in the page, and pictures of one's own: toys that can be turned, images from the command line, files.

const MOST_BYTES = 40_000_000; // of a picture's file
const MOST_SIDE = 12_000; // pixels

/** Bytes of text in base64, unpacked if they were deflated. */
export async function bytesOf(base64, deflated = false) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  if (!deflated) return packed;
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The grey levels of a toy: `views` are its numbers of elevation, azimuth and lighting, counted from 0. */
export function toyImage({ pixels, channels, side, elevations, azimuths, lightings }, toy, views) {
  const place =
    ((toy * elevations.length + views.elevation) * azimuths.length + views.azimuth) * lightings.length + views.lighting;
  const size = channels * side * side;
  return pixels.subarray(place * size, (place + 1) * size);
}

export function givenImage({ pixels, channels, side }, number) {
  const size = channels * side * side;
  return pixels.subarray(number * size, (number + 1) * size);
}

/** A picture file as the network's grey levels; an Error tells in a sentence why it cannot be used. */
export async function readPicture(file, network) {
  if (file.size > MOST_BYTES) {
    throw new Error(
      `${file.name} has ${Math.round(file.size / 1e6)} MB. Choose a picture of at most ${MOST_BYTES / 1e6} MB.`,
    );
  }
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(
      `${file.name} cannot be read as a picture. Choose a PNG, JPEG, WebP or GIF file that your browser can show.`,
    );
  }
  try {
    if (Math.max(bitmap.width, bitmap.height) > MOST_SIDE) {
      throw new Error(
        `${file.name} is ${bitmap.width} x ${bitmap.height} pixels. Choose one of at most ${MOST_SIDE} on a side.`,
      );
    }
    return fitted(bitmap, network);
  } finally {
    bitmap.close();
  }
}

/** The middle of a picture (or all of it, as the network's training did) as channels x side x side grey levels. */
function fitted(bitmap, { side, channels, fit }) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  const { width, height } = bitmap;
  // What of the picture is shown, and where: its middle, all of it with black borders, or all of it, stretched.
  const square = Math.min(width, height),
    scale = side / Math.max(width, height);
  const source = fit === "crop" ? [(width - square) / 2, (height - square) / 2, square, square] : [0, 0, width, height];
  const target =
    fit === "pad"
      ? [(side - width * scale) / 2, (side - height * scale) / 2, width * scale, height * scale]
      : [0, 0, side, side];
  context.fillStyle = "black";
  context.fillRect(0, 0, side, side);
  context.fillStyle = "white"; // behind transparent places
  context.fillRect(...target);
  context.drawImage(bitmap, ...source, ...target);
  return channelsOf(context.getImageData(0, 0, side, side).data, side, channels);
}

/** Colour channels for networks of three or four; else the same grey in each, so that both cameras see the picture. */
function channelsOf(rgba, side, channels) {
  const cells = side * side;
  const image = new Uint8Array(channels * cells);
  for (let at = 0; at < cells; at++) {
    const [red, green, blue] = rgba.subarray(4 * at, 4 * at + 3);
    const grey = Math.round(0.299 * red + 0.587 * green + 0.114 * blue);
    for (let channel = 0; channel < channels; channel++) {
      image[channel * cells + at] = channels >= 3 ? rgba[4 * at + channel] : grey;
    }
  }
  return image;
}
