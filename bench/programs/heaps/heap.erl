% As heap.py, 800,000 entries.
-module(heap).
-export([main/0]).
main() ->
    D = put(0, 12345, #{}),
    H = maps:fold(fun(K, {I, V}, A) -> (A + I * length(K) + length(V)) band 16#ffffffff end, 0, D),
    io:format("~p ~p~n", [maps:size(D), H]),
    halt().
put(800000, _, D) -> D;
put(I, X0, D) ->
    X = (X0 * 1103515245 + 12345) band 16#7fffffff,
    put(I + 1, X, D#{"k" ++ integer_to_list(X) => {I, "v" ++ integer_to_list(X rem 1000)}}).
