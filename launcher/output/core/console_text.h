// ConsoleText: merges what several sources write to one console stream into whole lines. Each
// line belongs to one source and has its prefix.
//
// A source's line may be open: an update of a progress bar, a part of a very long line, a
// prompt. When the same source writes next, its line continues. An update that begins with \r
// gets the prefix again, after that \r. When another source writes next, the open line is ended
// first. Otherwise a reader that looks for \n, or a terminal that still shows a bar, would get
// two sources in one line. The \n that would have ended that line later is then left out. No
// other byte of a source is lost or changed.
//
// Pure; one owner thread.
#pragma once

#include <string>
#include <string_view>

#include "launcher/output/core/buffer.h"
#include "launcher/output/core/line_splitter.h"

namespace ddprun {

// ConsoleSource: a writer to the console: a stream of a worker, or ddprun itself.
struct ConsoleSource {
  std::string prefix;     // in front of each line
  int order = 0;          // position among the sources that are shown at once
  bool returned = false;  // its last piece ended with \r
  // Its last piece did not end with \n. If "\n" comes next, it ends that line.
  bool is_open = false;
};

class ConsoleText {
 public:
  // Appends a piece of the source to `out`. The source must stay at its address until finish().
  void add(ConsoleSource& source, std::string_view piece, PieceEnd end, OutputBuffer& out);
  // Ends the source's line if it is open. The source writes nothing more.
  void finish(ConsoleSource& source, OutputBuffer& out);

 private:
  const ConsoleSource* open_ = nullptr;  // the source whose line was not ended by \n; null: none
};

}  // namespace ddprun
