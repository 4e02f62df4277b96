#lang racket/base
; As heap.py, 800,000 entries.
(define d (make-hash))
(define x 12345)
(for ([i 800000])
  (set! x (bitwise-and (+ (* x 1103515245) 12345) #x7fffffff))
  (hash-set! d (format "k~a" x) (list i (format "v~a" (modulo x 1000)))))
(define h (for/fold ([h 0]) ([(k v) d]) (bitwise-and (+ h (* (car v) (string-length k))) #xffffffff)))
(printf "~a ~a\n" (hash-count d) h)
