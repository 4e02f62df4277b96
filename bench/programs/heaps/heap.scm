; As heap.py, 800,000 entries.
(define d (make-hash-table))
(define x 12345)
(do ((i 0 (+ i 1))) ((= i 800000))
  (set! x (logand (+ (* x 1103515245) 12345) #x7fffffff))
  (hash-set! d (string-append "k" (number->string x)) (list i (number->string (modulo x 1000)))))
(display (hash-fold (lambda (k v a) (logand (+ a (* (car v) (string-length k))) #xffffffff)) 0 d))
(newline)
