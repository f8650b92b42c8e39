// Asking for rows of memory while products run.

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Walks the rows of `ahead`, so many cache lines each time that the last are asked for on the last
// of `turns`. In small portions: requests that fill all of a core's miss buffers would hold up the
// operands of the products.
class AheadCursor {
 public:
  // `blocks`: kMostAhead of them, or null.
  AheadCursor(const RowsAhead* blocks, int64_t turns)
      : block_(blocks), end_(blocks == nullptr ? nullptr : blocks + kMostAhead) {
    if (blocks == nullptr) return;
    int64_t lines = 0;
    for (const RowsAhead* b = block_; b != end_; ++b) lines += b->rows * ceil_div(b->bytes, kLine);
    at_turn_ = ceil_div(lines, turns);
    enter();
  }

  void next() {
    for (int64_t i = 0; i < at_turn_ && block_ != end_; ++i) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < block_->bytes) continue;
      at_ = 0;
      row_ += block_->stride;
      if (--rows_ == 0) ++block_, enter();
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  void enter() {
    while (block_ != end_ && block_->rows == 0) ++block_;
    if (block_ != end_) row_ = block_->first, rows_ = block_->rows;
  }

  const RowsAhead *block_, *end_;
  const char* row_ = nullptr;
  int64_t rows_ = 0, at_ = 0, at_turn_ = 0;
};
