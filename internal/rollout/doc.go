// Package rollout moves pools of nodes from one image to another: a pure
// planner (Plan) that says what comes next, and an Executor that does it
// through the store. It never speaks to a node: nodes learn what is wanted
// from the answer to their heartbeat.
//
// All state is in the store. A server that is killed between any two steps
// goes on from there, and a step that is planned twice is applied once.
//
// What is promised:
//   - a stage begins when the one before it is complete, has baked, and its
//     nodes are healthy;
//   - never more than MaxUnavailable nodes of a stage are on the move, or
//     left unhealthy by it;
//   - nodes are started within the windows of the policy only; those on the
//     move go on, and failed ones go back at any time;
//   - with ByDomain, the nodes of a failure domain that can take part start
//     together, within MaxUnavailable; one that has none is its own;
//   - more than FailureBudget failures halt it; silence is a failure once
//     Timeout is over; no waiting node is touched after that;
//   - trouble of a node's hardware, or of its cooling or power, is no failure
//     of the image: such a node is left where it is, and named;
//   - a node that failed has the image banned, and is asked for what it ran;
//   - flipping back touches only what this rollout changed.
//
// Rounding: percentages are of the nodes of the stage (MaxUnavailable) or of
// the whole rollout (FailureBudget), rounded down, MaxUnavailable then to at
// least 1.
package rollout
