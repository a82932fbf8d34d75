// The loop that every SIMD level instantiates with its own Lanes type; included by
// reduce_{scalar,avx2,avx512}.cc only, each in a namespace of its own, because the compiler flags
// differ.
//
// Lanes is 16 floats: static Load<Format>(const void* base, size_t index), Store<Format>(...),
// Add, Max, Min, Divide(float), and Squares (16 doubles): AddSquares(Lanes), Fold().
// No standard or Abseil function is called here: the linker could keep this level's copy of it.

template <LaneFormat kFormat>
inline constexpr size_t kElementBytes = StoredAsFloat32(kFormat) ? 4 : 2;

template <ReduceOp kOp>
inline Lanes Combine(Lanes a, Lanes b) {
  if constexpr (kOp == ReduceOp::kMax) {
    return Lanes::Max(a, b);
  } else if constexpr (kOp == ReduceOp::kMin) {
    return Lanes::Min(a, b);
  } else {
    return Lanes::Add(a, b);
  }
}

// One step of 16 elements at `index`.
template <LaneFormat kFormat, ReduceOp kOp>
inline Lanes Step(const void* const* inputs, size_t input_count, void* const* outputs,
                  size_t output_count, size_t index, float divisor) {
  Lanes sum = Lanes::template Load<kFormat>(inputs[0], index);
  for (size_t i = 1; i < input_count; ++i) {
    sum = Combine<kOp>(sum, Lanes::template Load<kFormat>(inputs[i], index));
  }
  if constexpr (kOp == ReduceOp::kAverage) {
    sum = Lanes::Divide(sum, divisor);
  }
  // The sum of squares is over the rounded results, as the outputs hold them.
  sum = Lanes::template Round<kFormat>(sum);
  for (size_t o = 0; o < output_count; ++o) {
    Lanes::template Store<kFormat>(outputs[o], index, sum);
  }
  return sum;
}

// The last count % 16 elements, through zero-padded copies.
template <LaneFormat kFormat, ReduceOp kOp>
inline Lanes Tail(const LoopArguments& a, size_t index, float divisor) {
  constexpr size_t kBytes = kElementBytes<kFormat>;
  alignas(64) char padded[64] = {};
  alignas(64) char result[64];
  const size_t bytes = (a.count - index) * kBytes;
  Lanes sum;
  for (size_t i = 0; i < a.input_count; ++i) {
    __builtin_memcpy(padded, static_cast<const char*>(a.inputs[i]) + index * kBytes, bytes);
    const Lanes value = Lanes::template Load<kFormat>(padded, 0);
    sum = i == 0 ? value : Combine<kOp>(sum, value);
  }
  if constexpr (kOp == ReduceOp::kAverage) {
    sum = Lanes::Divide(sum, divisor);
  }
  sum = Lanes::template Round<kFormat>(sum);
  Lanes::template Store<kFormat>(result, 0, sum);
  for (size_t o = 0; o < a.output_count; ++o) {
    __builtin_memcpy(static_cast<char*>(a.outputs[o]) + index * kBytes, result, bytes);
  }
  return sum;
}

template <LaneFormat kFormat, ReduceOp kOp, size_t kInputs, size_t kOutputs>
void Loop(const LoopArguments& a) {
  const size_t input_count = kInputs != 0 ? kInputs : a.input_count;
  const size_t output_count = kOutputs != 0 ? kOutputs : a.output_count;
  // Copies on the stack: stores to the outputs cannot alias them.
  const void* inputs[kInputs != 0 ? kInputs : 1];
  void* outputs[kOutputs != 0 ? kOutputs : 1];
  for (size_t i = 0; i < kInputs; ++i) {
    inputs[i] = a.inputs[i];
  }
  for (size_t o = 0; o < kOutputs; ++o) {
    outputs[o] = a.outputs[o];
  }
  const void* const* in = kInputs != 0 ? inputs : a.inputs;
  void* const* out = kOutputs != 0 ? outputs : a.outputs;
  const float divisor = a.divisor;
  const size_t whole = a.count & ~size_t{15};
  if (a.sum_of_squares == nullptr) {
    for (size_t i = 0; i < whole; i += 16) {
      Step<kFormat, kOp>(in, input_count, out, output_count, i, divisor);
    }
    if (whole < a.count) {
      Tail<kFormat, kOp>(a, whole, divisor);
    }
    return;
  }
  double total = *a.sum_of_squares;  // Block by block, so that chunks leave no trace.
  for (size_t block = 0; block < a.count; block += kSquareBlock) {
    Squares squares;
    const size_t end = block + kSquareBlock < whole ? block + kSquareBlock : whole;
    for (size_t i = block; i < end; i += 16) {
      squares.AddSquares(Step<kFormat, kOp>(in, input_count, out, output_count, i, divisor));
    }
    if (block + kSquareBlock > whole && whole < a.count) {
      squares.AddSquares(Tail<kFormat, kOp>(a, whole, divisor));
    }
    total += squares.Fold();
  }
  *a.sum_of_squares = total;
}

template <LaneFormat kFormat, ReduceOp kOp>
void Dispatch(const LoopArguments& a) {
  if (a.input_count == 2 && a.output_count == 2) {
    return Loop<kFormat, kOp, 2, 2>(a);
  }
  if (a.input_count == 2 && a.output_count == 1) {
    return Loop<kFormat, kOp, 2, 1>(a);
  }
  return Loop<kFormat, kOp, 0, 0>(a);
}

template <LaneFormat kFormat>
ReduceLoop FindOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Dispatch<kFormat, ReduceOp::kSum>;
    case ReduceOp::kAverage:
      return Dispatch<kFormat, ReduceOp::kAverage>;
    case ReduceOp::kMax:
      return Dispatch<kFormat, ReduceOp::kMax>;
    case ReduceOp::kMin:
      return Dispatch<kFormat, ReduceOp::kMin>;
  }
  return nullptr;
}

inline ReduceLoop Find(LaneFormat format, ReduceOp op) {
  switch (format) {
    case LaneFormat::kFloat32:
      return FindOp<LaneFormat::kFloat32>(op);
    case LaneFormat::kBFloat16:
      return FindOp<LaneFormat::kBFloat16>(op);
    case LaneFormat::kFloat16:
      return FindOp<LaneFormat::kFloat16>(op);
    case LaneFormat::kFloat32AsBFloat16:
      return FindOp<LaneFormat::kFloat32AsBFloat16>(op);
    case LaneFormat::kFloat32AsFloat16:
      return FindOp<LaneFormat::kFloat32AsFloat16>(op);
  }
  return nullptr;
}
