// Fuzzes the reading of a journal. The input is the bytes of the file.
//
//   scripts/build fuzz journal_fuzz
//   build/fuzz/bin/journal_fuzz -max_total_time=60 tests/fuzz/corpus/journal
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "rendezvous/persistence/core/journal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Result<JournalReading> reading = read_journal(bytes);
  if (!reading) {
    DDPRUN_ASSERT(!reading.error().cause.empty(), "a refusal says why");
    return 0;
  }
  DDPRUN_ASSERT(reading->whole_bytes <= size, "no more is whole than there is");
  const Result<JournalReading> cut = read_journal(bytes.substr(0, reading->whole_bytes));
  DDPRUN_ASSERT(cut && cut->whole_bytes == reading->whole_bytes && cut->image == reading->image,
                "cut where it was told to be, it says the same");
  const Result<JournalReading> again = read_journal(journal_snapshot(reading->image));
  DDPRUN_ASSERT(again && again->image == reading->image, "a snapshot says the same");
  return 0;
}
