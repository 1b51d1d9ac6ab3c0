// Numbers as text for people.

export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 360000) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

export function bytes(number) {
  if (number === undefined) return undefined;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; number >= 1024 && i < units.length - 1; ++i) number /= 1024;
  return `${number >= 100 || i === 0 ? Math.round(number) : number.toFixed(1)} ${units[i]}`;
}
