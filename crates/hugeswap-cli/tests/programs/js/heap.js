// A heap of small objects that is filled, read in order, partly replaced, and read again.
const entries = Number(process.argv[2]);
const entry = (i) => ({ key: i, text: 's' + i, list: [i, i + 1, i + 2], inner: { key: i } });
const all = [];
for (let i = 0; i < entries; i++) all.push(entry(i));
let sum = 0;
for (let round = 0; round < 3; round++)
  for (let i = 0; i < entries; i++) {
    const e = all[i];
    if (e.key !== i || e.text !== 's' + i || e.list[2] !== i + 2 || e.inner.key !== i) throw new Error('entry ' + i);
    sum += e.key;
    if (i % 5 === round) all[i] = entry(i);
  }
console.log(entries, 'entries, sum', sum);
