#include "transport/rails/rails_endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ddl {

namespace {

constexpr size_t kMostCopies = 1 << 20;       // bytes that may wait for the peer's answer
constexpr uint64_t kAnswerAfter = 256 << 10;  // bytes received, even if no frame asks
constexpr double kFrameSeconds = 1e-3;        // how long a frame takes on the slowest rail
constexpr size_t kLeastFrame = 16 << 10, kMostFrame = 256 << 10;
constexpr Nanoseconds kLookAfter = 50 * kMillisecond;
constexpr Nanoseconds kPatience = 500 * kMillisecond;
constexpr Nanoseconds kStalled = 50 * kMillisecond;
constexpr double kFaster = 1.5;
constexpr uint64_t kNoFrame = ~uint64_t{0};

}  // namespace

bool RailsEndpoint::open() const {
  return std::any_of(rails_.begin(), rails_.end(), [](const auto& rail) { return !rail->ended(); });
}

bool RailsEndpoint::silent(Nanoseconds limit) const {
  return open() &&
         std::all_of(rails_.begin(), rails_.end(), [limit](const auto& rail) { return rail->silent(limit); });
}

bool RailsEndpoint::all_ended() const { return rails_.size() >= expected_ && !open(); }

// --- writing ------------------------------------------------------------------------------------------------------

size_t RailsEndpoint::accept(const iovec* parts, int n, bool in_place) {
  if (all_ended()) throw LostPeer(peer_, reason_);
  if (copies_ >= kMostCopies && !in_place) {
    progress();
    if (copies_ >= kMostCopies) return 0;
  }
  size_t remaining = 0;
  for (int i = 0; i < n; ++i) remaining += parts[i].iov_len;
  const size_t total = remaining;
  size_t part = 0, in_part = 0;
  while (remaining > 0) {
    const size_t bytes = std::min(remaining, frame_bytes_);
    Frame& frame = frames_.push();
    fill(&frame, parts, &part, &in_part, bytes, in_place);
    remaining -= bytes;
    frame.answer = remaining == 0 && (in_place || copies_ >= kMostCopies / 2);
  }
  flush();
  return total;
}

// The next `bytes` of the parts, from `part` and `in_part` on.
void RailsEndpoint::fill(Frame* frame, const iovec* parts, size_t* part, size_t* in_part, size_t bytes,
                         bool in_place) {
  frame->offset = accepted_;
  frame->length = static_cast<uint32_t>(bytes);
  frame->taken = false;
  frame->on = nullptr;
  frame->parts.clear();
  size_t copied = 0;
  while (bytes > 0) {
    const iovec& from = parts[*part];
    const size_t step = std::min(bytes, from.iov_len - *in_part);
    if (step > 0) frame->parts.push_back({static_cast<char*>(from.iov_base) + *in_part, step});
    if (!in_place || step <= kCopiedPart) copied += step;
    bytes -= step;
    *in_part += step;
    if (*in_part == from.iov_len) {
      ++*part;
      *in_part = 0;
    }
  }
  frame->copied = copied == frame->length;
  frame->copy.resize(copied);
  char* to = frame->copy.data();
  for (iovec& own : frame->parts) {
    if (in_place && own.iov_len > kCopiedPart) continue;
    std::memcpy(to, own.iov_base, own.iov_len);
    own.iov_base = to;
    to += own.iov_len;
  }
  accepted_ += frame->length;
  if (frame->copied) copies_ += frame->length;
}

// Takes the next frame to send. False if there is none.
bool RailsEndpoint::take(uint64_t* frame) {
  while (!again_.empty()) {
    *frame = again_.front();
    again_.erase(again_.begin());
    if (frames_.has(*frame)) return true;
  }
  next_ = std::max(next_, frames_.first());
  if (next_ == frames_.end()) return false;
  *frame = next_++;
  return true;
}

// False if a faster rail would send all that remains before this one has sent a frame. At the end of a message that
// decides how long the message takes.
bool RailsEndpoint::worth(const Rail& rail) const {
  if (rail.rate() == 0 || !again_.empty()) return true;
  const uint64_t first = std::max(next_, frames_.first());
  if (first == frames_.end()) return true;
  const auto remaining = static_cast<double>(accepted_ - frames_[first].offset);
  double here = 0;
  for (const auto& other : rails_) {
    if (other.get() == &rail || !other->usable() || other->rate() < kFaster * rail.rate()) continue;
    if (here == 0) here = (static_cast<double>(rail.queued()) + frames_[first].length) / rail.rate();
    if ((static_cast<double>(other->queued()) + remaining) / other->rate() < here) return false;
  }
  return true;
}

// Lets a rail send, a frame at a time, until it takes no more or there is no more. Returns whether anything went.
bool RailsEndpoint::feed(Rail* rail) {
  if (!rail->sending()) {
    FrameHeader header;
    header.received = received_;
    uint64_t number = kNoFrame;
    static const std::vector<iovec> nothing;
    const std::vector<iovec>* parts = &nothing;
    if (rail->usable() && worth(*rail) && take(&number)) {
      Frame& frame = frames_[number];
      frame.on = rail;
      header.offset = frame.offset;
      header.length = frame.length;
      header.answer = frame.answer;
      parts = &frame.parts;
    } else if (answer_due_ && (rail == answer_on_ || answer_on_->mute())) {
      header.offset = accepted_;
    } else {
      return false;
    }
    answer_due_ = false;
    answered_ = received_;
    rail->begin(number, header, *parts);
  }
  const bool moved = rail->write() > 0;
  if (!rail->sending() && frames_.has(rail->frame())) frames_[rail->frame()].taken = true;
  return moved;
}

bool RailsEndpoint::flush() {
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (const auto& rail : rails_) {
      if (rail->mute()) continue;
      try {
        again |= feed(rail.get());
      } catch (const LostPeer& lost) {
        // The peer may have closed. What it sent before is still to be read.
        reason_ = lost.what();
        rail->stop_sending(reason_);
        take_back(rail.get());
        again = true;
      }
    }
    moved |= again;
  }
  return moved;
}

// --- what the peer has --------------------------------------------------------------------------------------------

void RailsEndpoint::heard(uint64_t received) {
  if (received > accepted_) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer_) + " has received more than it was sent");
  }
  while (!frames_.empty() && frames_.front().offset + frames_.front().length <= received) {
    if (frames_.front().copied) copies_ -= frames_.front().length;
    frames_.pop();
  }
  for (const auto& rail : rails_) {
    // The frame has come over another rail. Its memory may change now.
    if (rail->sending() && rail->frame() < frames_.first()) rail->blank();
  }
}

uint64_t RailsEndpoint::released() {
  unreleased_ = std::max(unreleased_, frames_.first());
  while (unreleased_ < frames_.end() && frames_[unreleased_].copied && frames_[unreleased_].taken) ++unreleased_;
  return unreleased_ == frames_.end() ? accepted_ : frames_[unreleased_].offset;
}

void RailsEndpoint::take_back(const Rail* rail) {
  for (uint64_t number = frames_.first(); number < std::min(next_, frames_.end()); ++number) {
    if (frames_[number].on != rail) continue;
    frames_[number].on = nullptr;
    again_.push_back(number);
  }
  std::sort(again_.begin(), again_.end());
}

void RailsEndpoint::lose(Rail* rail, const LostPeer& why) {
  reason_ = why.what();
  rail->end(reason_);
  take_back(rail);
}

void RailsEndpoint::look_after() {
  const Nanoseconds now = now_ns();
  if (frames_.empty() || rails_.size() < 2 || now - looked_after_ < kLookAfter) return;
  looked_after_ = now;
  double slowest = 0;
  for (const auto& rail : rails_) {
    const bool before = rail->suspect();
    if (!rail->mute() && rail->look_after() && !before) take_back(rail.get());
    if (rail->changed(now)) tell_(rail->number(), rail->works(), rail->why());
    if (rail->mute()) continue;
    if (rail->rate() > 0 && (slowest == 0 || rail->rate() < slowest)) slowest = rail->rate();
  }
  // The peer's kernel has acknowledged all, but no answer has come. It may be lost with its rail.
  if (waited_for_ != frames_.first()) {
    waited_for_ = frames_.first();
    patience_ = kPatience;
    ask_again_ = now + patience_;
  } else if (now >= ask_again_ && waited_for_ < next_) {
    if (again_.empty()) again_.push_back(waited_for_);
    patience_ *= 2;
    ask_again_ = now + patience_;
  }
  if (slowest > 0) {
    frame_bytes_ = std::clamp(static_cast<size_t>(slowest * kFrameSeconds) & ~size_t{4095}, kLeastFrame, kMostFrame);
  }
}

bool RailsEndpoint::progress() {
  const uint64_t before = frames_.first();
  for (const auto& rail : rails_) deliverable(rail.get());
  if (all_ended()) {
    // A peer that has shut down in good order had all. Of any other, the operation that waits for it will tell.
    if (next_ < frames_.end()) throw LostPeer(peer_, reason_);
    heard(accepted_);
  }
  look_after();
  const bool moved = flush();
  return moved || frames_.first() != before;
}

void RailsEndpoint::poll_fds(Polled* fds, bool reading, bool) const {
  for (const auto& rail : rails_) {
    if (rail->ended()) continue;
    const bool more = rail->usable() && (next_ < frames_.end() || !again_.empty()) && worth(*rail);
    const bool room = rail->sending() || more;
    // Data that nobody reads yet would wake this rank again and again. Nothing that it waits for is behind that data:
    // a peer that sends data of a later operation has received all of this one, and has said so.
    const bool data = rail->has_frame() && rail->remaining() > 0 && !rail->copying();
    const bool later = data && (rail->position() > received_ ? !setting_aside_ : !reading);
    if (!later || room) rail->poll_fds(fds, room);
  }
}

bool RailsEndpoint::finished() {
  progress();
  const bool all_given = next_ >= frames_.end() && again_.empty();
  const auto through = [](const auto& rail) {
    return rail->mute() || (!rail->sending() && (rail->suspect() || rail->queued() == 0));
  };
  return all_ended() || (all_given && std::all_of(rails_.begin(), rails_.end(), through));
}

void RailsEndpoint::abandon() {
  reason_ = "the communicator has failed";
  for (const auto& rail : rails_) rail->end(reason_);
  frames_.clear();
  next_ = frames_.end();
  again_.clear();
}

// --- reading ------------------------------------------------------------------------------------------------------

// Handles what comes on a rail besides data, and drops data that came before. True if the stream goes on there.
bool RailsEndpoint::deliverable(Rail* rail) {
  try {
    while (!rail->ended() && rail->look()) {
      const FrameHeader& coming = rail->coming();
      if (rail->fresh()) heard(coming.received);
      if (rail->copying() || (setting_aside_ && rail->remaining() > 0 && rail->position() > received_)) {
        if (!set_aside(rail)) return false;
        continue;
      }
      if (rail->remaining() > 0 && rail->position() >= received_) return rail->position() == received_;
      if (rail->remaining() > 0 &&
          rail->drop(std::min<uint64_t>(rail->remaining(), received_ - rail->position())) == 0) {
        return false;
      }
      if (rail->remaining() > 0) continue;
      if (coming.length > 0) answer(rail);  // sent twice: the peer does not know that this rank has it
      rail->finish();
    }
  } catch (const LostPeer& lost) {
    lose(rail, lost);
  }
  return false;
}

// True if the whole frame is set aside now.
bool RailsEndpoint::set_aside(Rail* rail) {
  if (rail->copy() == 0) return false;
  if (rail->remaining() > 0) return true;
  early_.keep(rail->coming().offset, std::move(rail->copied()));
  answer_on_ = rail;
  rail->copied().clear();
  rail->finish();
  return true;
}

void RailsEndpoint::answer(const Rail* rail) {
  answer_due_ = true;
  answer_on_ = rail;
}

// Reads from a rail into the parts, behind the first `skip` bytes.
size_t RailsEndpoint::deliver(Rail* rail, const iovec* parts, int n, size_t skip) {
  std::array<iovec, 64> rest;
  int count = 0;
  size_t room = rail->remaining();
  for (int i = 0; i < n && room > 0 && count < static_cast<int>(rest.size()); ++i) {
    if (skip >= parts[i].iov_len) {
      skip -= parts[i].iov_len;
      continue;
    }
    const size_t step = std::min(room, parts[i].iov_len - skip);
    rest[static_cast<size_t>(count++)] = {static_cast<char*>(parts[i].iov_base) + skip, step};
    room -= step;
    skip = 0;
  }
  const size_t bytes = count == 0 ? 0 : rail->read(rest.data(), count);
  received_ += bytes;
  if (rail->remaining() > 0) return bytes;
  if (rail->coming().answer || received_ - answered_ >= kAnswerAfter) answer(rail);
  rail->finish();
  return bytes;
}

size_t RailsEndpoint::read(const iovec* parts, int n) {
  size_t room = 0, total = 0;
  for (int i = 0; i < n; ++i) room += parts[i].iov_len;
  for (bool moved = true; moved && total < room;) {
    const size_t early = early_.take(received_, parts, n, total);
    received_ += early;
    total += early;
    moved = early > 0;
    answer_due_ = answer_due_ || moved;
    for (const auto& rail : rails_) {
      while (total < room && deliverable(rail.get())) {
        size_t bytes = 0;
        try {
          bytes = deliver(rail.get(), parts, n, total);
        } catch (const LostPeer& lost) {
          lose(rail.get(), lost);
        }
        if (bytes == 0) break;
        total += bytes;
        moved = true;
      }
    }
  }
  if (answer_due_) flush();
  if (total > 0) {
    stalled_ = 0;
    setting_aside_ = false;
  } else if (stalled_ == 0) {
    stalled_ = now_ns();
  } else if (!setting_aside_ && now_ns() - stalled_ > kStalled) {
    setting_aside_ = true;
  }
  if (total == 0 && all_ended()) throw LostPeer(peer_, reason_);
  return total;
}

}  // namespace ddl
