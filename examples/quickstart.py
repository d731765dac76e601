"""Index a small shop, search it, rerank what was found: on the models that ship with the package.

Run with: python examples/quickstart.py
"""

from __future__ import annotations

from clip_faiss import ClipFaissIndex
from lad_rerank import Candidate, LADReranker
from lad_rerank.bundled import shop

# Any images will do: files, bytes, PIL images, arrays. Here, products that the models never saw.
items = shop.catalogue(200, seed=7, side="held_out")
index = ClipFaissIndex.build([Candidate(item.image(), item.id, {"title": item.title}) for item in items])

# A hub id such as "Qwen/Qwen2.5-VL-3B-Instruct" or a local folder works the same; calibrate it once, see the README.
reranker = LADReranker.from_pretrained("bundled")

query = "a pink mug on a wooden table"
hits = index.search(query, k=8)
pictures = {item.id: item.image() for item in items}
ranking = reranker.rerank(query, [Candidate(pictures[hit.id], hit.id, hit.metadata) for hit in hits], top_n=3)

print(query if ranking.confident is not False else f"{query} (perhaps none of these)")
for place in ranking:
    hit = hits[place.index]
    print(f"{place.rank}. {hit.metadata['title']}  (score {place.score:.2f}, first stage: {hit.rank}.)")
