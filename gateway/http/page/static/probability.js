// Log-probabilities as people read them.

/** "93.1 %", or a power of ten where that would show nothing. */
export function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value >= 0.05 ? `${value.toFixed(1)} %` : `${value.toExponential(0)} %`;
}

/** A token as one can see it: spaces and line ends have signs. */
export function visible(token) {
  return token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}
