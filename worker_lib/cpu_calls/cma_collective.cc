#include "worker_lib/cpu_calls/cma_collective.h"

namespace ddprun {
namespace {

void copy_all(const Scattered<const char>& from, const Scattered<char>& to) {
  from.for_each({0, from.bytes()}, [&](const char* piece, std::size_t offset, std::size_t bytes) {
    to.copy_from(piece, {offset, offset + bytes});
  });
}

}  // namespace

bool CmaCollective::has_room(const GroupTopology& here, std::size_t pieces) {
  return pieces <= (here.segment.stage_bytes - sizeof(Head)) / sizeof(Place);
}

void CmaCollective::stage(const Chunk& chunk) {
  Place* const places = places_of(here_.local, chunk);
  for (std::size_t i = 0; i < job_.offered.size(); ++i) {
    places[i] = {reinterpret_cast<std::uint64_t>(job_.offered[i].data()), job_.offered[i].size()};
  }
}

// A rank that cannot be read may be dead; the watch is about to learn of that. Or reading may be
// forbidden by now: then nothing that was read counts, and all ranks stage.
TcpMesh::End CmaCollective::work(const Chunk& chunk, TimePoint) {
  Head& head = head_of(here_.local, chunk);
  head.could_read = read_all(chunk);
  head.found_quicker = job_.found_quicker;
  return {};
}

bool CmaCollective::read_all(const Chunk& chunk) const {
  const int count = here_.local_count();
  // Each rank begins with itself and goes on with the next one, so that not all ranks read the
  // same memory at first.
  for (int step = 0; step < count; ++step) {
    const int source = (here_.local + step) % count;
    const PullJob::Take& take = job_.takes[source];
    if (take.to.bytes() == 0) continue;
    const Place* const places = places_of(source, chunk);
    std::vector<ReadableBytes> pieces;
    for (std::size_t i = take.pieces.begin; i < take.pieces.end; ++i) {
      pieces.emplace_back(reinterpret_cast<const char*>(places[i].address), places[i].bytes);
    }
    const Scattered<const char> from{ReadableList(pieces)};
    if (source == here_.local) {
      const bool is_in_place =
          !from.whole().empty() && from.whole().data() == take.to.whole().data();
      if (!is_in_place) copy_all(from, take.to);
    } else if (!memory_.read(source, from, take.to)) {
      return false;
    }
  }
  return true;
}

void CmaCollective::copy_out(const Chunk& chunk) {
  for (int local = 0; local < here_.local_count(); ++local) {
    const Head& head = head_of(local, chunk);
    was_possible_ = was_possible_ && head.could_read != 0;
    all_found_quicker_ = all_found_quicker_ && head.found_quicker != 0;
  }
}

}  // namespace ddprun
